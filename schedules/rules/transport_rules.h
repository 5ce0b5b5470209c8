#pragma once

// What a transport does with sends and receives, as data: the proof, the search for slots and the dependency
// graph are made under one set of rules. The rules decide three things.
//
//   sends     rendezvous  a start_send returns when its receive is posted. No transport is stricter, so what
//                         finishes under this rule finishes under the next.
//             eager       a message of at most `eager_limit` bytes is copied and its start_send returns, if a
//                         buffer of `eager_buffer` bytes per channel has room for it; larger ones are
//                         rendezvous. The buffer is a ring that every eager message goes through: its bytes
//                         are free again when its receive and those of all eager messages sent before it are
//                         posted.
//             launched    a start_send only launches; its wait_send returns when the receive is posted too.
//                         The operations of a rank on one channel run in launch order, each after the one
//                         before it is over: a posted receive occupies the channel (NCCL's communicators).
//                         Where operations are `announced`, a start_send or post_receive tells the other
//                         rank's host of it, and an end goes to the device when both hosts have come to theirs,
//                         at latest at its wait. Otherwise it goes there at once, and then a device that waits
//                         for all its work may wait for ever (device_waits.h).
//   matching  tagged      a send meets the receive of its tag.
//             in_order    no tags: the k-th send of a channel meets the k-th receive. Proved: both orders are
//                         the same.
//   channels  what has an order, or a buffer, of its own: every boundary between two ranks, every payload
//             between two ranks, or all that goes between them. Always apart by direction, but for launched
//             operations between a pair: these share one order in both directions.
//
// Channels run beside each other, and beside collectives, which have communicators of their own. Grouped
// launches (ncclGroupStart) are not modelled.

#include "schedules/costs/costs.h"
#include "schedules/program/program.h"

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace stagecraft {

struct TransportRules {
  enum class Sends : std::uint8_t { rendezvous, eager, launched };
  enum class Matching : std::uint8_t { tagged, in_order };
  enum class Channels : std::uint8_t { boundary, payload, pair };

  Sends sends = Sends::rendezvous;
  Matching matching = Matching::tagged;
  Channels channels = Channels::boundary;
  bool announced = false;               ///< launched: see above
  std::optional<Bytes> eager_limit{};   ///< eager: largest message; none: any
  std::optional<Bytes> eager_buffer{};  ///< eager: bytes each channel may hold unreceived; none: unlimited

  [[nodiscard]] static TransportRules eager(std::optional<Bytes> limit = {},
                                            std::optional<Bytes> buffer = {}) {
    return {.sends = Sends::eager, .eager_limit = limit, .eager_buffer = buffer};
  }
  /// NCCL, with a communicator for every (source, destination, payload), or one for a pair of ranks.
  [[nodiscard]] static TransportRules nccl(Channels channels = Channels::payload) {
    return {
        .sends = Sends::launched, .matching = Matching::in_order, .channels = channels, .announced = true};
  }

  /// Whether message sizes matter, which only a cost table knows.
  [[nodiscard]] bool needs_sizes() const {
    return sends == Sends::eager && (eager_limit.has_value() || eager_buffer.has_value());
  }
  /// Whether the order of a channel decides which ends meet. What is launched has no tags.
  [[nodiscard]] bool ordered() const { return matching == Matching::in_order || sends == Sends::launched; }
  /// Whether both directions between two ranks share one order.
  [[nodiscard]] bool one_order_a_pair() const {
    return sends == Sends::launched && channels == Channels::pair;
  }
  bool operator==(const TransportRules&) const = default;
};

template <>
inline constexpr std::array enum_names<TransportRules::Matching>{"tagged", "fifo"};
template <>
inline constexpr std::array enum_names<TransportRules::Channels>{"boundary", "payload", "pair"};

/// Names the channel of a transfer among those between the same two ranks in the same direction.
struct ChannelKey {
  Payload payload = Payload::activation;
  StageId from, to;
  constexpr auto operator<=>(const ChannelKey&) const = default;
};
[[nodiscard]] ChannelKey channel_key(const TransportRules& rules, const Tag& tag);
/// Where each boundary has a channel of its own, as for receive slots.
[[nodiscard]] constexpr ChannelKey boundary_key(const SlotInfo& slot) {
  return {slot.payload, slot.from, slot.to};
}

/// Bytes of one message; without costs none.
[[nodiscard]] std::optional<Bytes> message_bytes(const CostTable* costs, const Tag& tag);

/// The eager messages of one sending rank: which of them must have left a channel's buffer for the next to
/// fit.
class EagerBuffers {
 public:
  EagerBuffers(const TransportRules& rules, const CostTable* costs) : rules_(rules), costs_(costs) {}

  /// Appends to `awaited` the names of those messages whose receives must be posted before this send returns:
  /// its own where it is rendezvous. Names are the caller's.
  void send(Rank to, const Tag& tag, std::int32_t name, std::vector<std::int32_t>& awaited);

 private:
  struct Buffer {
    std::deque<std::pair<std::int32_t, std::int64_t>> messages;  // name and bytes, oldest first
    std::int64_t bytes = 0;
  };
  TransportRules rules_;
  const CostTable* costs_;
  std::map<std::pair<Rank, ChannelKey>, Buffer> buffers_;
};

/// As people name rules: "rendezvous", "eager[:LIMIT[:BUFFER]]" or "nccl", and what is otherwise than there,
/// behind commas: "tagged" (not of nccl) or "fifo", "boundary", "payload" or "pair" (what a channel is), of nccl
/// "unannounced"; one of a kind. Throws InputError for anything else.
[[nodiscard]] TransportRules transport_rules(const std::string& name);
/// How a proof under these rules is told: "even if every send blocks until it is received".
[[nodiscard]] std::string describe_rules(const TransportRules& rules);

}  // namespace stagecraft
