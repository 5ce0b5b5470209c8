#pragma once

// One level of PipeDream's optimization: for every stretch between two states and every number of machines
// the least bottleneck (optimizer.h has the recurrence).
//
// Stretches that end in one state are computed for several beginnings at once: what a last stage costs does
// not depend on where the stretch begins, so that a step is one maximum and one minimum over neighbouring
// numbers. There are machines^2 / 2 of them for every two states and beginning.

#include "partitioner/pipedream/optimizer.h"

#include <limits>
#include <utility>
#include <vector>

namespace stagecraft::pipedream {

inline constexpr double kImpossible = std::numeric_limits<double>::infinity();

/// Seconds of stretches on what the level within has. Those with nothing in them, and those that cannot be,
/// are kImpossible.
class Stretches {
 public:
  explicit Stretches(std::size_t states) : states_(states), seconds_(states * states, kImpossible) {}

  [[nodiscard]] double& at(Begin begin, int state) { return seconds_[place(begin, state)]; }
  [[nodiscard]] double at(Begin begin, int state) const { return seconds_[place(begin, state)]; }

 private:
  [[nodiscard]] std::size_t place(Begin begin, int state) const {
    return to_size(state) * states_ + to_size(begin);
  }

  std::size_t states_;
  std::vector<double> seconds_;  // by state, then beginning
};

/// For some beginnings: the least bottleneck of every stretch on 1, 2, ... machines.
class Bottlenecks {
 public:
  Bottlenecks(std::vector<Begin> begins, std::size_t states, int machines)
      : begins_(std::move(begins)),
        machines_(to_size(machines)),
        seconds_(states * machines_ * begins_.size(), kImpossible) {}

  [[nodiscard]] const std::vector<Begin>& begins() const { return begins_; }
  /// Of all beginnings; those on one machine more lie behind.
  [[nodiscard]] double* row(int state, int machines) { return &seconds_[place(state, machines)]; }
  /// Of the n-th beginning.
  [[nodiscard]] double at(std::size_t n, int state, int machines) const {
    return seconds_[place(state, machines) + n];
  }

 private:
  [[nodiscard]] std::size_t place(int state, int machines) const {
    return (to_size(state) * machines_ + to_size(machines - 1)) * begins_.size();
  }

  std::vector<Begin> begins_;
  std::size_t machines_;
  std::vector<double> seconds_;  // by state, machines, beginning
};

/// What a plan that is known to exist says of all that are as good: every stage of `d` devices has at most
/// d * seconds of compute, and at least that less the slack, since what all stages lack together is
/// devices * seconds less all compute. Stages that are not so need not be looked at.
struct KnownPlan {
  double seconds = kImpossible;  ///< its bottleneck; kImpossible: none is known
  double slack = kImpossible;

  /// Whether so much compute may be that of stages whose devices are a multiple of `devices`, in a plan as
  /// good.
  [[nodiscard]] bool allows(double compute, double devices) const;
};

/// How the last stage of a stretch is cut off: behind state `cut` (-1: it is the whole stretch), with so many
/// replicas. `machines` are those that the stretch uses.
struct LastStage {
  int cut = -1;
  int replicas = 1;
  int machines = 1;
};

class LevelSolver {
 public:
  /// `level` counts from 0, the innermost. Keeps references: the arguments must outlive it.
  LevelSolver(const StateGraph& states, const Options& options, std::size_t level, const Stretches& within);

  /// Values that no plan as good as the known one has may come out as kImpossible, or above what they are.
  [[nodiscard]] Bottlenecks solve(std::vector<Begin> begins, const KnownPlan& known) const;
  /// How the value of the n-th beginning comes about. Requires it to be possible.
  [[nodiscard]] LastStage last_stage(const Bottlenecks& solved, std::size_t n, int state, int machines) const;

  /// A stretch as one stage on so many machines, the first of its pipeline. kImpossible where it does not
  /// fit.
  [[nodiscard]] double first_stage(Begin begin, int state, int machines) const;
  /// What a stage on so many machines adds to its compute before both are divided by them.
  [[nodiscard]] double all_reduce(Begin begin, int state, int replicas, bool first) const;
  /// Sending what crosses the cut behind that state, from or to so many replicas; 0 where transfers are free.
  [[nodiscard]] double transfer(int state, int replicas) const;

 private:
  [[nodiscard]] double parameters(Begin begin, int state) const {
    return states_.between(begin, state, &State::parameters);
  }
  [[nodiscard]] bool fits(Begin begin, int state, int replicas, int used) const;
  /// Of a stage behind `cut` that ends in `state`.
  [[nodiscard]] double later_stage(int cut, int state, int replicas) const;
  /// On how many machines, `most` at most, so much compute may be in a plan as good as the known one; on none
  /// if first > second.
  [[nodiscard]] std::pair<int, int> useful_machines(double compute, int most, const KnownPlan& known) const;
  void keep_fewer(int state, Bottlenecks& solved) const;

  const StateGraph& states_;
  const Options& options_;
  const Level level_;
  const Stretches& within_;
  int machines_within_;
  double devices_within_ = 1;  ///< of one machine of this level
  double copies_ = 1;          ///< that the levels outside may make of a stage, at most
  int most_replicas_;
  std::vector<double> share_;      // 1 / m, by m - 1
  std::vector<double> per_byte_;   // of parameters: a later stage's all-reduce, divided by its replicas
  std::vector<double> transfers_;  // by state, then replicas; the last state sends nothing
};

}  // namespace stagecraft::pipedream
