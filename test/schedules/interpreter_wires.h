#pragma once

// The interpreter's network: messages between ranks, under a transport's rules
// (schedules/rules/transport_rules.h). It moves symbols; what they mean, and whether a slot may take one, is
// the interpreter's matter.

#include "test/schedules/interpreter_layout.h"

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <tuple>
#include <vector>

namespace stagecraft::test {

/// A slot of a rank that a receive was posted into.
struct Posted {
  int rank;
  Slot slot;
};

/// A message on its way into a slot.
struct Arrival {
  Posted where;
  Tag tag;
  Symbol content;
};

class Wires {
 public:
  Wires(const Layout& layout, const TransportRules& rules, const CostTable* costs)
      : layout_(layout), rules_(rules), costs_(costs) {}

  [[nodiscard]] bool tags() const {
    return rules_.matching == TransportRules::Matching::tagged && !launches();
  }
  [[nodiscard]] bool launches() const { return rules_.sends == TransportRules::Sends::launched; }

  /// Throws Wrong for a tag that is no receive of this rank, or was posted before.
  void post(int rank, Slot slot, const Tag& tag);
  /// False: it blocks.
  bool start_send(int rank, const Tag& tag, Symbol content);
  /// Whether a send that was started is over: at once, but where operations are launched.
  bool send_over(const Tag& tag);

  /// Some message that has come to its slot, if there is one.
  std::optional<Arrival> any_arrival(std::mt19937& random);
  /// The next that has come to this slot.
  std::optional<Arrival> arrival_at(int rank, Slot slot);

  /// Throws Wrong if some message would meet a receive of the next segment.
  void require_empty() const;

 private:
  /// Sender and receiver (where a pair shares one order: the lower rank first), and what else keeps it apart.
  using Channel = std::tuple<int, int, int, int, int>;
  /// A sent message that is not received.
  struct Buffered {
    Tag tag;
    std::size_t number;  ///< in its channel
    Symbol content;
    std::int64_t bytes;
    bool taken = false;
  };
  /// What one end has launched and is not over.
  struct Launched {
    bool sends;
    Tag tag;
    Symbol content;
    Posted where;
  };
  struct ChannelState {
    std::vector<Posted> posted;
    std::size_t sent = 0;
    std::deque<Buffered> buffer;
    std::deque<Launched> ends[2];
  };

  [[nodiscard]] Channel channel_of(int from, int to, const Tag& tag) const;
  [[nodiscard]] std::optional<std::int64_t> bytes_of(const Tag& tag) const;
  [[nodiscard]] bool eager(const Tag& tag) const;
  /// False: there is no room. The buffer is a ring: what is taken still lies there until all before it are.
  bool buffer(ChannelState& channel, const Tag& tag, Symbol content, bool taken);
  /// Launched operations whose two ends have both come to the head of their channel.
  void complete_launched();
  Arrival take(std::size_t which);

  const Layout& layout_;
  const TransportRules rules_;
  const CostTable* costs_;
  std::map<Tag, Posted> posted_;
  std::set<Tag> sent_, over_;
  std::map<Channel, ChannelState> channels_;
  std::vector<Arrival> arriving_;
};

}  // namespace stagecraft::test
