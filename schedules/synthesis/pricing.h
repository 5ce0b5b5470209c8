#pragma once

// What an order is worth, fast enough for the inner loop of a search: the makespan of the program that
// lowering makes of it, without making it. Slots, posts and the waits for earlier sends are those of
// lowering.h with its default options, times those of simulator.h where every pair of ranks has its links for
// itself; reductions and the norm agreement take no time here but to wait for each other. With those out of
// the way it is the simulator's makespan to the last bit. Nothing relies on that: what a search returns is
// priced and proved as a program.

#include "schedules/synthesis/problem.h"
#include "schedules/synthesis/slot_surplus.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace stagecraft::synthesis {

inline constexpr double kNever = std::numeric_limits<double>::infinity();

struct Price {
  double makespan = kNever;  ///< infinite: deadlock
  double mean_end = kNever;  ///< of the ranks' last computations: of equal makespans the one with less is
                             ///< nearer to a better one
  [[nodiscard]] bool finishes() const { return makespan < kNever; }
};

/// Prices orders of one problem. Allocates only for orders longer than all before. Not safe for two threads
/// at once.
class Pricing {
 public:
  /// Keeps a reference to `problem`.
  explicit Pricing(const Problem& problem);

  /// `orders` are well formed. Linear in their length, unless the rendezvous rule needs more slots than
  /// usual.
  const Price& run(const Orders& orders);

  /// Of the last run: when a rank's i-th computation began and ended, seconds. A recompute is part of it and
  /// counts as done right before the rest.
  [[nodiscard]] const std::vector<double>& begins(Rank rank) const { return begins_[rank.index()]; }
  [[nodiscard]] const std::vector<double>& ends(Rank rank) const { return ends_[rank.index()]; }
  /// Slots beyond those read at once that lowering gives the last run's orders: the usual one, or more where
  /// they would wait for slots (slot_surplus.h) or the rendezvous rule needs them.
  [[nodiscard]] int extra_slots() const { return extra_slots_; }
  /// Computations priced so far: what a search is budgeted by.
  [[nodiscard]] std::int64_t work() const { return work_; }
  [[nodiscard]] std::int64_t runs() const { return runs_; }

 private:
  /// Activations or gradients into a seat: a receiving rank's channel.
  struct Channel {
    std::vector<std::size_t> transfers;  // in micro-batch order, which is the order they are read in
    int held = 0;                        // most read at once
    int reading = 0;
    std::size_t posted = 0;
  };
  /// Sends of one kind from a seat that are under way, oldest first; lowering lets two be.
  struct Window {
    int count = 0;
    std::array<std::size_t, 2> sends{};
  };

  void count_held(const Orders& orders);
  bool pass(const Orders& orders, int surplus);
  void advance(std::size_t rank, const Order& order);
  bool compute(std::size_t rank, const Compute& c, std::size_t place);
  bool send(std::size_t rank, const Compute& c);
  void send_loss(std::size_t rank, const Compute& c);
  void post_next(Channel& channel, double now);
  void conclude();

  /// Transfers and channels come in pairs: the activation into a stage and the gradient into it.
  [[nodiscard]] std::size_t activation(int stage, MicroBatch micro_batch) const {
    return 2 * (static_cast<std::size_t>(stage) * micro_batches_ + micro_batch.index());
  }
  [[nodiscard]] std::size_t gradient(int stage, MicroBatch micro_batch) const {
    return activation(stage, micro_batch) + 1;
  }

  const Problem& problem_;
  SlotSurplus surplus_;
  std::size_t micro_batches_;
  // Per transfer.
  std::vector<char> travels_;  // not handed over on a rank, and there is one at all
  std::vector<double> seconds_;
  std::vector<std::size_t> from_, to_;  // ranks
  std::vector<double> loss_seconds_;    // per replica of the last stage
  // Of the run under way.
  std::vector<Channel> channels_;  // two a seat
  std::vector<Window> windows_;    // two a seat: the activations and the gradients it sends
  std::vector<double> posted_;     // per transfer; negative: not yet
  std::vector<double> arrived_;    // per transfer; likewise
  std::vector<double> clock_;      // per rank
  std::vector<double> lanes_;      // from a rank to a rank
  double losses_ = 0;              // when the last one is there
  std::vector<std::size_t> next_;  // per rank: the computation it stands at
  std::vector<char> computed_;     // per rank: that one is done, what it sends is not
  std::vector<char> awake_;        // per rank: may go on
  std::vector<std::vector<double>> begins_, ends_;
  int extra_slots_ = 0;
  Price price_;
  std::int64_t work_ = 0;
  std::int64_t runs_ = 0;
};

}  // namespace stagecraft::synthesis
