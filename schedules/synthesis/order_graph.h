#pragma once

// An order as the graph of what each computation waits for: the one before it on its rank, and the neighbour
// stage's, with the transfer between. Heads, the longest way to each, and tails, the longest from its end to
// the end of the step, tell what a change makes of the step without another pass.

#include "base/draws.h"
#include "schedules/synthesis/problem.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace stagecraft::synthesis {

class OrderGraph {
 public:
  /// Keeps a reference to `problem`.
  explicit OrderGraph(const Problem& problem);

  /// Well-formed orders; a whole backward becomes its two parts.
  void take(const Orders& orders);
  [[nodiscard]] Order order(std::size_t rank) const;
  [[nodiscard]] Orders orders() const;

  [[nodiscard]] std::size_t nodes() const { return nodes_.size(); }
  [[nodiscard]] std::size_t node(std::size_t rank, std::size_t place) const { return lists_[rank][place]; }
  [[nodiscard]] std::size_t rank(std::size_t node) const { return nodes_[node].rank; }
  [[nodiscard]] std::size_t place(std::size_t node) const { return nodes_[node].place; }

  /// Finds heads and tails, of those that moves since the last time can have changed; false where the orders deadlock.
  /// What follows is about the last that it found.
  bool evaluate();
  /// Of the step, as if transfers had links of their own: the makespan; or, where ranks go on from step to step, the
  /// longest that one takes from its start to its end. No time from one step to the next is longer, whatever the
  /// starts.
  [[nodiscard]] double seconds() const { return seconds_; }
  /// Where ranks go on: takes for their starts those of the next few steps for which seconds() is least. False where the
  /// orders deadlock.
  bool settle();
  /// Nodes of a longest way, first one first; which, where there are several, is drawn.
  [[nodiscard]] const std::vector<std::size_t>& critical_path(Draws& draws);

  /// The farthest place on the way to `to` that the rank's computation at `from` can go without passing one
  /// that it must stay behind or before; without a deadlock where nothing is recomputed.
  [[nodiscard]] std::size_t reach(std::size_t rank, std::size_t from, std::size_t to) const;
  /// The longest way through what a move to a place within reach changes, other ranks taken as they are: of
  /// neighbours that change places no more than seconds() then, of others about that.
  [[nodiscard]] double estimate(std::size_t rank, std::size_t from, std::size_t to);
  /// Needs a new evaluate().
  void move(std::size_t rank, std::size_t from, std::size_t to);

 private:
  using Index = std::uint32_t;
  static constexpr Index kNone = static_cast<Index>(-1);
  static constexpr double kNothing = -std::numeric_limits<double>::infinity();
  struct Node {
    Compute compute{};
    Index rank = 0;
    Index place = 0;
    Index needs = kNone;      ///< the neighbour stage's that it waits for
    Index feeds = kNone;      ///< and the one that waits for it
    Index done = kNone;       ///< its place in `done_`
    double until_needed = 0;  ///< from its end until the one that waits can begin
    double seconds = 0;
    double head = 0;
    double tail = 0;
  };

  /// Places of a rank in which computations have moved.
  struct Stretch {
    std::size_t rank, first, last;
  };

  [[nodiscard]] Index at(std::size_t part, StageId stage, MicroBatch mb) const {
    return static_cast<Index>(
        (part * to_size(problem_.stages()) + stage.index()) * to_size(problem_.micro_batches()) + mb.index());
  }
  void connect(Index from, Index to, double hop);
  bool find_heads();
  void find_tails();
  /// Everything is to be found anew.
  void forget();
  /// When what it waits for of another stage is there.
  [[nodiscard]] double arrival(const Node& node) const {
    if (node.needs == kNone) return kNothing;
    const Node& other = nodes_[node.needs];
    return other.head + other.seconds + other.until_needed;
  }
  /// What must follow its end, by way of another stage.
  [[nodiscard]] double onward(const Node& node) const {
    return node.feeds == kNone ? kNothing
                               : node.until_needed + nodes_[node.feeds].seconds + nodes_[node.feeds].tail;
  }
  /// When the rank is free for a node that would be at `place`.
  [[nodiscard]] double end_before(std::size_t rank, std::size_t place, const Node& node) const {
    if (place == 0) return starts_[rank] + asked_before(node);
    const Node& before = nodes_[lists_[rank][place - 1]];
    return before.head + before.seconds;
  }
  /// A rank that begins with what it gets asks for it first.
  [[nodiscard]] double asked_before(const Node& first) const {
    const bool received = problem_.goes_on() && first.compute.op == Op::forward && first.needs != kNone;
    return received ? nodes_[first.needs].until_needed : 0;
  }
  [[nodiscard]] double after(std::size_t rank, std::size_t place) const {
    if (place + 1 == lists_[rank].size()) return flush_[rank] - starts_[rank];
    const Node& next = nodes_[lists_[rank][place + 1]];
    return next.seconds + next.tail;
  }

  const Problem& problem_;
  std::vector<Node> nodes_;
  std::vector<std::vector<Index>> lists_;  // [rank] nodes in order
  std::vector<double> flush_;              // [rank] behind its last computation
  std::vector<double> starts_;             // [rank] when its first may begin
  std::vector<Index> done_;                // nodes whose heads are known, each behind what it waits for
  std::vector<Stretch> moved_;             // since the tails were found
  bool tails_known_ = false;               // but for what has moved
  double seconds_ = 0;
  // Kept for their memory.
  std::vector<std::size_t> next_;  // [rank]
  std::vector<std::size_t> runnable_;
  std::vector<std::size_t> path_;
  std::vector<double> heads_;
  std::vector<double> best_starts_, next_starts_;
};

}  // namespace stagecraft::synthesis
