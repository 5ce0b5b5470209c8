#pragma once

// What waits for what in a lowered program, under the rules of a transport. The checker finds deadlocks in
// this graph, the simulator runs along it. The default rule is rendezvous, the strictest there is: a program
// without a cycle under it finishes under every other, as far as its messages meet.
//
// A node is one action, named by its position in the concatenation of all ranks' lists. It completes when the
// action returns. Edges into a node:
//   program order   the action before it on the same rank
//   posted          rendezvous: a start_send returns only when the receiver has issued the post_receive of
//   its tag.
//                   eager: instead, when the receives of all those messages are posted that must leave the
//                   channel's buffer for this one to fit. launched: a wait_send waits for the post_receive,
//                   no start_send does
//   sent            a wait_receive returns only when the start_send of its tag has returned
//   together        agree_norm, reduce and tie return on no member before every member has come to them: each
//                   member waits for the action *before* the collective on every other member
// post_receive and release never wait, nor does a wait_send unless sends are launched. Slots need no edges of
// their own: who may write a slot follows from where its post_receive stands.
//
// Ends meet by tag. Where a transport has no tags, or launches in order, that is what its order makes of them
// as long as both ends have the same order, which the checker proves on its own (checker/order.cpp); in
// launch order a transfer is then over when both of its ends are launched, since all before it in the order
// are.

#include "schedules/costs/costs.h"
#include "schedules/program/program.h"
#include "schedules/rules/transport_rules.h"

#include <cstdint>
#include <string>
#include <vector>

namespace stagecraft {

class Dependencies {
 public:
  /// Linear in the number of actions. Holds no reference to `program`. Any program is taken; what does not
  /// match is listed in `problems` and has no edge. `costs` tells how large messages are, where the rules
  /// ask: without it none is eager below a limit.
  explicit Dependencies(const LoweredProgram& program, const TransportRules& rules = {},
                        const CostTable* costs = nullptr);

  [[nodiscard]] std::int32_t size() const { return first_.back(); }
  [[nodiscard]] std::int32_t node(Rank rank, std::int32_t index) const {
    return first_[rank.index()] + index;
  }
  [[nodiscard]] std::int32_t first_of(Rank rank) const { return first_[rank.index()]; }
  [[nodiscard]] std::int32_t end_of(Rank rank) const { return first_[rank.index() + 1]; }
  [[nodiscard]] ActionPlace place(std::int32_t node) const;
  /// The action of a node; `program` is the one the graph was made of.
  [[nodiscard]] const Action& action(const LoweredProgram& program, std::int32_t node) const {
    return program.action(place(node));
  }

  /// The transfer's other end: of a start_send its post_receive, of a wait_receive and of a post_receive its
  /// start_send, of a wait_send its start_send. Of an agree_norm, reduce or tie the number of its collective.
  /// -1: no other end, or an action of another kind.
  [[nodiscard]] std::int32_t peer(std::int32_t node) const { return peer_[static_cast<std::size_t>(node)]; }
  /// Members of the collective of that number, one node per rank, by rank.
  [[nodiscard]] const std::vector<std::int32_t>& members(std::int32_t collective) const {
    return collectives_[static_cast<std::size_t>(collective)];
  }
  [[nodiscard]] std::int32_t collectives() const { return static_cast<std::int32_t>(collectives_.size()); }

  /// All nodes in an order that respects every edge; shorter than `size` when some can never run. Members of
  /// a collective stand next to each other.
  [[nodiscard]] const std::vector<std::int32_t>& order() const { return order_; }
  [[nodiscard]] bool acyclic() const { return order_.size() == peer_.size(); }
  /// A cycle of fewest waiting actions, in waiting order: each waits for something that is, or stands behind,
  /// the next one. Empty when acyclic. Among the shortest, one of the actions at which ranks stand still when
  /// the program can go no further, if there is one. (Of very large programs the shortest found: see
  /// dependency_cycle.h.)
  [[nodiscard]] const std::vector<std::int32_t>& cycle() const { return cycle_; }
  /// The cycle in words, one line per rank: "rank 0 waits at [12] start send of ... for rank 1 to pass [9] post
  /// receive of ...".
  [[nodiscard]] std::vector<std::string> describe_cycle(const LoweredProgram& program) const;

  /// Transfers and collectives that do not meet: "start send of activation 3 ... on rank 0 [4] has no post
  /// receive". In program order.
  [[nodiscard]] const std::vector<std::string>& problems() const { return problems_; }

 private:
  void index_ranks();
  /// Fills `ops`: the op of every node. The rest of the work goes by these: of a large program little fits
  /// into caches, and where ranks take turns each turn is short.
  void match_transfers(const LoweredProgram& program, std::vector<Op>& ops);
  void match_collectives(const LoweredProgram& program, const std::vector<Op>& ops);
  void fill_buffers(const LoweredProgram& program, const CostTable* costs);
  void sort(const LoweredProgram& program, const std::vector<Op>& ops);
  void find_cycle(const LoweredProgram& program, const std::vector<std::int32_t>& stuck);
  /// Calls `visit` with each node that must complete before `node` may, program order apart, until it says
  /// false.
  template <class Visit>
  void each_awaited(Op op, std::int32_t node, Visit&& visit) const;

  TransportRules rules_;
  static constexpr unsigned kBlockBits = 7;
  std::vector<std::int32_t> first_;    // per rank its first node, and the end
  std::vector<std::int32_t> rank_at_;  // per block of nodes the rank of its first one
  std::vector<std::int32_t> peer_;
  std::vector<std::vector<std::int32_t>> collectives_;
  std::vector<std::int32_t> room_;       // eager: post_receives, those that a start_send waits for together
  std::vector<std::uint32_t> room_end_;  // eager: per node the end of its part of room_
  std::vector<std::int32_t> order_;
  std::vector<std::int32_t> cycle_;
  std::vector<std::string> problems_;
};

}  // namespace stagecraft
