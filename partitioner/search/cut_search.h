#pragma once

// Branch and bound over the cuts of a chain for one program: the least simulated step, with the proof.
//
// Stages are given their layers one after the other. What is still possible behind a part of the cuts is
// bounded from below by
//   - every known bound of the step (step_bound.h): its value for the stages given, and the least it can be
//     for the rest, from a dynamic program over (stage, layer) made once a bound;
//   - the stages' own work: for every stage a time that some rank of it is busy, with the head before and the
//     tail behind it, whose largest over the rest is made as small as it can be by a min-max partition.
// A cut whose bound is not below the best step known is left out. Where a step is simulated and the bounds
// were below it, its critical path joins them: with it the same cuts are bounded by what they take, so the
// search learns from every simulation (as Benders' cuts do: Geoffrion, "Generalized Benders Decomposition",
// JOTA 10, 1972).
//
// Before that the bounds are weighed against each other: any weighted mean of bounds is a bound, its least
// value is known by the same dynamic program, and weights that raise it are found by multiplicative updates
// (Freund & Schapire, "Adaptive game playing using multiplicative weights", GEB 29, 1999). The cuts that come
// up on the way are simulated: most often the best is among them.

#include "partitioner/search/program_pricer.h"
#include "partitioner/search/stage_settings.h"

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <set>
#include <vector>

namespace stagecraft::planning {

/// How the cuts of one layout were searched before.
struct SearchedBefore {
  int times = 0;
  std::int64_t descended = 0;  ///< work of their descents
};

/// About nanoseconds: bounds looked at and actions simulated.
struct CutSearchBudget {
  std::int64_t work = std::numeric_limits<std::int64_t>::max();
  std::function<bool()> go_on{};  ///< asked now and then; empty: always
  /// Of the cuts that take no longer than the best the ones that need least memory are looked for, too.
  bool lightest = false;
  /// The seeds hold what came of it, and descents draw other steps.
  SearchedBefore before{};
  bool goes_on = false;  ///< it is searched again: what comes last comes then
  /// With so much work done, and at each doubling of it, it stops if it does not look as if it would end in time.
  std::int64_t look_ahead = std::numeric_limits<std::int64_t>::max();
};

struct CutSearchResult {
  std::optional<std::vector<int>> cuts;  ///< better than `to_beat`, if there are any
  RecomputeSettings settings;            ///< theirs
  double seconds = std::numeric_limits<double>::infinity();
  /// No cuts that fit take less than this, or than `to_beat` where that is less.
  double bound = 0;
  bool complete = false;       ///< nothing was left out for want of budget
  std::int64_t simulated = 0;  ///< cuts
  std::int64_t work = 0;
  std::int64_t descended = 0;  ///< of this work a descent's
  /// Of a descent: of the cuts met that fit the best, whether better than `to_beat` or not; infinite and of those that
  /// need least, where none fit.
  struct Nearest {
    std::vector<int> cuts;
    double seconds = std::numeric_limits<double>::infinity();
    Bytes needs{};
  };
  Nearest nearest{};
  /// Of all that is known.
  [[nodiscard]] Nearest best_met() const { return cuts ? Nearest{*cuts, seconds, {}} : nearest; }
};

class CutSearch {
 public:
  /// Keeps references to `costs` and `settings`, which learn what is refused. Cuts lie before layers 1 to
  /// `cuttable` - 1.
  CutSearch(const PlacedCosts& costs, const OrderFreeBounds& bounds, int cuttable, StageSettings& settings);

  /// Below this no step can be, as far as is known before anything is simulated.
  [[nodiscard]] double first_bound() const;

  /// The least step below `to_beat`; of equal ones any. `seeds` are looked at first.
  [[nodiscard]] CutSearchResult run(ProgramPricer& pricer, double to_beat, const CutSearchBudget& budget,
                                    const std::vector<std::vector<int>>& seeds = {});

 private:
  /// A bound with the least it can be from a stage and layer on.
  struct Row {
    StepBound bound;
    std::vector<double> rest;  // per (stage, first layer)
  };
  struct Child {
    double bound;
    int last;
    Recompute setting;
  };

  [[nodiscard]] std::size_t at(int stage, int first) const {
    return to_size(stage) * (to_size(layers_) + 1) + to_size(first);
  }
  [[nodiscard]] int latest(int stage) const { return cuttable_ - (stages_ - 1 - stage); }
  [[nodiscard]] std::optional<Recompute> setting(int stage, int first, int last) const {
    return settings_.least(StageId{stage}, first, last);
  }
  /// What a stage adds to a bound with the least setting that it may have; infinite where that is not below
  /// `limit`, or there is none.
  [[nodiscard]] double part(const StepBound& bound, int stage, int first, int last, double limit) const;
  void find_own_work(const OrderFreeBounds& bounds);
  void fill_rest(Row& row, std::vector<int>* choice) const;
  void add(StepBound bound, bool keep);
  void weigh(int rounds);
  /// Simulates whole cuts with the settings that they need, unless that was done; learns from them.
  void look_at(const std::vector<int>& cuts);
  /// With these settings. Whether others are to be tried: these are fast enough and need too much memory.
  [[nodiscard]] bool needs_more(const std::vector<int>& cuts, RecomputeSettings& settings);
  void descend(int stage, int first);
  [[nodiscard]] bool out_of_budget();
  /// The share of the branches that is done, as if all were as large.
  [[nodiscard]] double done() const;
  [[nodiscard]] bool asks();

  const PlacedCosts& costs_;
  int layers_;
  int stages_;
  int cuttable_;
  StageSettings& settings_;
  Recompute fastest_;             // no stage takes less than with this setting
  std::vector<double> own_work_;  // per (stage, first layer): of the stages from there on, at least
  std::vector<Row> rows_;
  std::size_t next_replaced_ = 0;
  std::size_t kept_rows_ = 0;
  // Of the search under way.
  ProgramPricer* pricer_ = nullptr;
  CutSearchBudget budget_;
  CutSearchResult result_;
  double best_ = 0;  // step to beat
  Bytes memory_;     // of the result's rank that needs most, where that counts
  double open_ = 0;  // least bound of what was left out for want of budget
  bool stopped_ = false;
  std::int64_t next_look_ = 0;
  std::int64_t asked_ = 0;
  std::int64_t asked_at_ = 0;        // with so much work done
  std::set<std::vector<int>> seen_;  // while weighing
  std::vector<int> cuts_;
  RecomputeSettings chosen_;                  // of the stages before
  std::vector<std::vector<double>> partial_;  // per depth and row
  std::vector<std::vector<Child>> children_;  // per depth
  std::vector<std::size_t> child_;            // per depth on the way to here: the one under way
};

}  // namespace stagecraft::planning
