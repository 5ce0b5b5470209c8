// Proof 2, second half: order. Without tags the k-th send of a channel meets its k-th receive, so both ends
// must have the same order, or a rank reads another micro-batch's tensor. Where a pair of ranks shares one
// launch order, and each operation occupies the channel until it is over, two orders are a deadlock: at the
// first place where they differ each rank's operation waits for an end that the other has only further on.

#include "schedules/checker/proofs.h"

#include <fmt/format.h>

#include <algorithm>
#include <compare>
#include <map>
#include <utility>

namespace stagecraft::checker {
namespace {

class Order {
 public:
  Order(const ProgramIndex& index, const TransportRules& rules, Findings& findings)
      : index_(index), rules_(rules), findings_(findings) {}

  bool run() {
    collect();
    for (const auto& [channel, ends] : channels_) {
      if (findings_.full()) return false;
      compare(ends);
    }
    return same_;
  }

 private:
  /// Either end's operations in its own order. Where both directions share one, `first` is the lower rank's.
  struct Ends {
    std::vector<ActionPlace> first, second;
  };
  struct TransportChannel {
    Rank first, second;
    ChannelKey key;
    auto operator<=>(const TransportChannel&) const = default;
  };

  void collect() {
    index_.program().each_action([&](ActionPlace here, const Action& action) {
      const bool sends = action.op == Op::start_send;
      if (!sends && action.op != Op::post_receive) return;
      const Transfer& transfer = index_.transfer(action.tag);
      const ActionPlace other = sends ? transfer.post : transfer.start;
      // Without its other end, or done before: found already.
      if (!other.found() || here != (sends ? transfer.start : transfer.post)) return;
      const bool is_first = rules_.one_order_a_pair() ? here.rank < other.rank : sends;
      TransportChannel channel{here.rank, other.rank, channel_key(rules_, action.tag)};
      if (!is_first) std::swap(channel.first, channel.second);
      Ends& ends = channels_[channel];
      (is_first ? ends.first : ends.second).push_back(here);
    });
  }

  void compare(const Ends& ends) {
    for (std::size_t k = 0; k < std::min(ends.first.size(), ends.second.size()); ++k) {
      const ActionPlace first = ends.first[k];
      const ActionPlace second = ends.second[k];
      if (index_.action(first).tag == index_.action(second).tag) continue;
      same_ = false;
      if (index_.action(first).op != index_.action(second).op) {
        findings_.add(
            Finding::Kind::matching,
            fmt::format("{} meets {}: both are number {} of their channel, and without tags the orders "
                        "of sends and receives must be the same",
                        index_.name(first), index_.name(second), k));
        return;
      }
      findings_.add(
          Finding::Kind::deadlock,
          fmt::format("ranks {} and {} launch operations on their channel in two orders, each after the "
                      "one before it is over",
                      first.rank.value, second.rank.value),
          {blocked(first, other_end(first), second), blocked(second, other_end(second), first)});
      return;
    }
  }

  [[nodiscard]] ActionPlace other_end(ActionPlace here) const {
    const Transfer& transfer = index_.transfer(index_.action(here).tag);
    return index_.action(here).op == Op::start_send ? transfer.post : transfer.start;
  }

  [[nodiscard]] std::string blocked(ActionPlace here, ActionPlace wanted, ActionPlace before) const {
    const auto text = [&](ActionPlace place) {
      return fmt::format("[{}] {}", place.at, describe_action(index_.action(place)));
    };
    return fmt::format("rank {}'s channel is at {} until rank {} launches {}, behind {}", here.rank.value,
                       text(here), wanted.rank.value, text(wanted), text(before));
  }

  const ProgramIndex& index_;
  const TransportRules& rules_;
  Findings& findings_;
  std::map<TransportChannel, Ends> channels_;
  bool same_ = true;
};

}  // namespace

bool prove_order(const ProgramIndex& index, const TransportRules& rules, Findings& findings) {
  if (!rules.ordered()) return true;
  return Order(index, rules, findings).run();
}

}  // namespace stagecraft::checker
