#pragma once

// The one-way lines that a run's programs need between ranks. NCCL has no tags, and what is launched on a
// communicator waits for what was launched there before: ends meet by their order. So each kind of transfer
// between two ranks has a communicator of its own, and gradients never queue behind activations; where that
// is not enough for both ends to have one order (many stages per rank), each boundary between stages has. Sums
// over replicas have communicators of their own (groups.h).

#include "schedules/program/program.h"
#include "schedules/rules/transport_rules.h"

#include <compare>
#include <vector>

namespace stagecraft::transport {

struct NcclChannel {
  Rank from, to;
  ChannelKey key;  ///< by the rules

  constexpr auto operator<=>(const NcclChannel&) const = default;
};

/// The line that a transfer takes.
[[nodiscard]] NcclChannel channel_of(const TransportRules& rules, Rank from, Rank to, const Tag& tag);

/// Ascending, each once.
[[nodiscard]] std::vector<NcclChannel> channels_of(const std::vector<const LoweredProgram*>& programs,
                                                   const TransportRules& rules);

}  // namespace stagecraft::transport
