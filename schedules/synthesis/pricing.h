#pragma once

// What an order is worth, fast enough for the inner loop of a search: the makespan of the program that
// lowering makes of it, without making it. Slots, posts and the waits for earlier sends are those of
// lowering.h with its default options, times those of simulator.h where every pair of ranks has its links for
// itself; reductions and the norm agreement take no time here but to wait for each other. With those out of
// the way it is the simulator's makespan to the last bit. Nothing relies on that: what a search returns is
// priced and proved as a program.

#include "schedules/lowering/slot_choice.h"
#include "schedules/lowering/transfer_run.h"
#include "schedules/lowering/transfer_script.h"
#include "schedules/program/orders.h"
#include "schedules/program/step_program.h"
#include "schedules/synthesis/problem.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

namespace stagecraft::synthesis {

inline constexpr double kNever = std::numeric_limits<double>::infinity();

struct Price {
  double makespan = kNever;  ///< infinite: deadlock
  /// What is minimized: the makespan; or where ranks go on from step to step (Problem::goes_on) the longest that a
  /// rank takes from its first transfer to its end. The time from one step to the next is at most that.
  double seconds = kNever;
  /// From what is minimized to the ranks' last computations: of equal seconds the one with less is nearer to a better one.
  double mean_end = kNever;
  [[nodiscard]] bool finishes() const { return makespan < kNever; }
};

/// Seconds under the rendezvous rule. A send begins when its receive is posted and the one before it between
/// the same ranks is over; its rank goes on at once.
class CostClock : public TransferRun<CostClock, double> {
 public:
  /// Keeps references to both.
  CostClock(const Problem& problem, const TransferScript& script);

  /// The rank's list is now that of `order`.
  void take(std::size_t rank, const Order& order);

  // Of the last run.
  [[nodiscard]] const std::vector<double>& begins(std::size_t rank) const { return lanes_[rank].begins; }
  [[nodiscard]] const std::vector<double>& ends(std::size_t rank) const { return lanes_[rank].ends; }
  /// Computations done, sends included, on the ranks up to the first that is stuck.
  [[nodiscard]] std::int64_t work() const;

 private:
  friend TransferRun;
  struct Hop {
    std::size_t link = 0;
    double seconds = 0;
  };
  struct Times {
    double seconds, recompute;
  };
  struct Lane {
    std::vector<Times> times;  // by computation
    std::vector<double> begins, ends;
    std::size_t computed = 0;
    std::optional<double> before_recompute{};  // of the next computation, once that is done
    double recomputed = 0;
  };

  void begin();
  void compute(std::uint32_t rank, Op op, double& now);
  bool wait_receive(std::uint32_t rank, std::uint32_t transfer) { return reach(rank, transfer); }
  bool wait_send(std::uint32_t rank, std::uint32_t transfer) { return reach(rank, transfer); }
  bool may_send(std::uint32_t rank, std::uint32_t transfer) { return await(rank, posted(transfer)); }
  double arrival(std::uint32_t rank, std::uint32_t transfer) {
    const Hop& hop = hops_[transfer];
    double& link = links_[hop.link];
    return link = std::max({now(rank), when(posted(transfer)), link}) + hop.seconds;
  }

  const Problem& problem_;
  std::vector<Hop> hops_;      // by transfer
  std::vector<double> links_;  // from a rank to a rank: when its last transfer is over
  std::vector<Lane> lanes_;
};

/// Prices orders of one problem; lays those ranks again whose order is not that of the run before. Not safe
/// for two threads at once.
class Pricing {
 public:
  /// Keeps a reference to `problem`.
  explicit Pricing(const Problem& problem);
  Pricing(const Pricing&) = delete;
  Pricing& operator=(const Pricing&) = delete;

  /// `orders` are well formed. Linear in their length, unless the rendezvous rule needs more slots than
  /// usual.
  const Price& run(const Orders& orders);

  /// Of the last run: when a rank's i-th computation began and ended, seconds. A recompute is part of it and
  /// counts as done right before the rest.
  [[nodiscard]] const std::vector<double>& begins(Rank rank) const { return costs_.begins(rank.index()); }
  [[nodiscard]] const std::vector<double>& ends(Rank rank) const { return costs_.ends(rank.index()); }
  /// Slots beyond those read at once that lowering gives the last run's orders: the usual one, or more where
  /// they would wait for slots (unhurried_surplus) or the rendezvous rule needs them.
  [[nodiscard]] int extra_slots() const { return extra_slots_; }
  /// Computations priced so far: what a search is budgeted by.
  [[nodiscard]] std::int64_t work() const { return work_; }
  [[nodiscard]] std::int64_t runs() const { return runs_; }

 private:
  void take(std::size_t rank, const Order& order);
  bool pass(int surplus);
  void conclude();
  /// What a rank's time counts from: the transfer before its first computation, which needs it there; 0 where all
  /// begin together.
  [[nodiscard]] double needed_from(std::size_t rank) const;

  const Problem& problem_;
  ProgramHeader header_;
  ComputeWriter writer_;
  TransferScript script_;
  TickClock ticks_;
  CostClock costs_;
  std::vector<Order> laid_, laid_before_;  // by rank
  std::vector<Action> list_;               // of the rank that is laid
  std::vector<double> clock_;              // by rank
  int extra_slots_ = 0;
  Price price_;
  std::int64_t work_ = 0;
  std::int64_t runs_ = 0;
};

}  // namespace stagecraft::synthesis
