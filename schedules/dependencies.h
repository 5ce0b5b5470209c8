#pragma once

// What waits for what in a lowered program, under the rendezvous rule: the strictest transport there is, so
// that a program without a cycle here finishes on every one. The checker finds deadlocks in this graph, the
// simulator runs along it.
//
// A node is one action, named by its position in the concatenation of all ranks' lists. It completes when the
// action returns. Edges into a node:
//   program order   the action before it on the same rank
//   posted          a start_send returns only when the receiver has issued the post_receive of its tag
//   sent            a wait_receive returns only when the start_send of its tag has returned
//   together        agree_norm and reduce return on no member before every member has come to them: each
//                   member waits for the action *before* the collective on every other member
// post_receive and release never wait; a wait_send follows its start_send on the same rank, which under
// rendezvous means that the receiver is there. Slots need no edges of their own: who may write a slot follows
// from where its post_receive stands.

#include "schedules/program.h"

#include <cstdint>
#include <string>
#include <vector>

namespace stagecraft {

class Dependencies {
 public:
  /// Where a node stands.
  struct Place {
    Rank rank;
    std::int32_t index = 0;
  };

  /// Linear in the number of actions. Holds no reference to `program`. Any program is taken; what does not
  /// match is listed in `problems` and has no edge.
  explicit Dependencies(const LoweredProgram& program);

  [[nodiscard]] std::int32_t size() const { return first_.back(); }
  [[nodiscard]] std::int32_t node(Rank rank, std::int32_t index) const {
    return first_[rank.index()] + index;
  }
  [[nodiscard]] std::int32_t first_of(Rank rank) const { return first_[rank.index()]; }
  [[nodiscard]] std::int32_t end_of(Rank rank) const { return first_[rank.index() + 1]; }
  [[nodiscard]] Place place(std::int32_t node) const;
  /// The action of a node; `program` is the one the graph was made of.
  [[nodiscard]] const Action& action(const LoweredProgram& program, std::int32_t node) const;

  /// The transfer's other end: of a start_send its post_receive, of a wait_receive and of a post_receive its
  /// start_send, of a wait_send its start_send. Of an agree_norm or reduce the number of its collective.
  /// -1: no other end, or an action of another kind.
  [[nodiscard]] std::int32_t peer(std::int32_t node) const { return peer_[static_cast<std::size_t>(node)]; }
  /// Members of the collective of that number, one node a rank, by rank.
  [[nodiscard]] const std::vector<std::int32_t>& members(std::int32_t collective) const {
    return collectives_[static_cast<std::size_t>(collective)];
  }
  [[nodiscard]] std::int32_t collectives() const { return static_cast<std::int32_t>(collectives_.size()); }

  /// All nodes in an order that respects every edge; shorter than `size` when some can never run. Members of
  /// a collective stand next to each other.
  [[nodiscard]] const std::vector<std::int32_t>& order() const { return order_; }
  [[nodiscard]] bool acyclic() const { return order_.size() == peer_.size(); }
  /// The shortest circle of ranks in the deadlock the program runs into: each node is the action at which its
  /// rank stands still, and waits for something that stands behind the next one. Empty when acyclic.
  [[nodiscard]] const std::vector<std::int32_t>& cycle() const { return cycle_; }
  /// The cycle in words, one line a rank: "rank 0 [12] start send of ... waits for rank 1 [9] post receive of
  /// ..., behind rank 1 [7] start send of ...".
  [[nodiscard]] std::vector<std::string> describe_cycle(const LoweredProgram& program) const;

  /// Transfers and collectives that do not meet: "start send of activation 3 ... on rank 0 [4] has no post
  /// receive". In program order.
  [[nodiscard]] const std::vector<std::string>& problems() const { return problems_; }

 private:
  void match_transfers(const LoweredProgram& program);
  void match_collectives(const LoweredProgram& program);
  void sort(const LoweredProgram& program);
  void find_cycle(const LoweredProgram& program, const std::vector<std::int32_t>& stuck);
  [[nodiscard]] std::vector<std::int32_t> awaited(const LoweredProgram& program, std::int32_t node) const;

  std::vector<std::int32_t> first_;  // per rank its first node, and the end
  std::vector<std::int32_t> peer_;
  std::vector<std::vector<std::int32_t>> collectives_;
  std::vector<std::int32_t> order_;
  std::vector<std::int32_t> cycle_;
  std::vector<std::string> problems_;
};

}  // namespace stagecraft
