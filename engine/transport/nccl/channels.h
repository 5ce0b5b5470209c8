#pragma once

// The one-way lines that a run's programs need between ranks. NCCL has no tags, and what is launched on a
// communicator waits for what was launched there before; so each kind of transfer between two ranks has a
// communicator of its own, and gradients never queue behind activations (TransportRules::nccl() is this as
// data, and `prove` under those rules shows that ends meet in order).

#include "schedules/program.h"

#include <compare>
#include <vector>

namespace stagecraft::transport {

struct NcclChannel {
  Rank from, to;
  Payload payload = Payload::activation;
  /// Sums over replicas have lines of their own, by stage and phase, since stages' sums go on side by side.
  StageId summed{};
  std::int32_t phase = 0;

  constexpr auto operator<=>(const NcclChannel&) const = default;
};

/// The line that a transfer takes.
[[nodiscard]] NcclChannel channel_of(Rank from, Rank to, const Tag& tag);

/// Ascending, each once. Losses are not among them: they are two numbers of the host's, and go over MPI.
[[nodiscard]] std::vector<NcclChannel> channels_of(const std::vector<const LoweredProgram*>& programs);

}  // namespace stagecraft::transport
