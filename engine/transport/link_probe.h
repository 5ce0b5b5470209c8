#pragma once

// Measures the link that a transport makes between two ranks, with tensors of the sizes that pipelines
// exchange.

#include "stagecraft/engine/transport/transport.h"
#include "stagecraft/schedules/costs/costs.h"

namespace stagecraft {

/// Collective: every rank of the transport calls it, and all get the same answer. Ranks 0 and 1 play
/// ping-pong, the others wait. Latency is half the round trip of 4 bytes, bandwidth follows from what a large
/// message takes longer; medians over many rounds. Takes about a second. Requires at least two ranks.
[[nodiscard]] Link probe_link(Transport& transport);

/// The same between two threads of this process, over the local transport.
[[nodiscard]] Link probe_local_link();

}  // namespace stagecraft
