#pragma once

// Measures the link that a transport makes between two ranks, with tensors of the sizes that pipelines
// exchange.

#include "engine/transport/nccl/wiring.h"
#include "engine/transport/transport.h"
#include "schedules/costs/costs.h"

#include <c10/core/Device.h>

#include <array>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace stagecraft {

/// Two ranks between which a link is measured.
using RankPair = std::pair<Rank, Rank>;

/// A link as it was measured: medians over many rounds, and between which values the middle half of the rounds lay
/// (interquartile ranges).
struct ProbedLink : Link {
  Seconds latency_spread;
  double bytes_per_second_spread = 0;
};

/// Collective: every rank of the transport calls it, and all get the same answer, a link per pair. The pairs play
/// ping-pong at the same time, the other ranks wait; a rank is in one pair at most. Latency is half the round trip
/// of 4 bytes, bandwidth follows from what a large message takes longer. Takes about a second. The tensors lie on `device`, whose transport it is; on a GPU a message ends when its bytes are there.
[[nodiscard]] std::vector<ProbedLink> probe_links(Transport& transport, c10::Device device,
                                                  const std::vector<RankPair>& pairs);
/// Between ranks 0 and 1.
[[nodiscard]] ProbedLink probe_link(Transport& transport, c10::Device device = c10::kCPU);

/// What probe_links() needs of a transport over NCCL.
[[nodiscard]] transport::NcclWiring probe_wiring(const std::vector<RankPair>& pairs = {{Rank{0}, Rank{1}}});

/// The same between two threads of this process, over the local transport, or over what `of_device` makes of it
/// for the device of each, on its thread.
using OfDevice =
    std::function<std::unique_ptr<Transport>(std::unique_ptr<Transport> hosts, c10::Device device)>;
[[nodiscard]] ProbedLink probe_local_link(const std::array<c10::Device, 2>& devices = {c10::kCPU, c10::kCPU},
                                          const OfDevice& of_device = {});

}  // namespace stagecraft
