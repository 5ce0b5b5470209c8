#pragma once

// Processes that a launcher started and the run has no rank for (pipeline.ranks). They have loaded all libraries, and
// wait: a supervisor that starts a run again after a loss starts all processes it has, so each may be a rank then.

#include "engine/transport/transport.h"

namespace stagecraft {

/// A spare's wait, over the transport of `everybody`, until rank 0 dismisses it. Returns the signal that stopped the
/// run, 0 where it is done. Throws PeerError where another process is lost.
[[nodiscard]] int await_end(Transport& everybody);

/// Rank 0's, once the run has ended: the processes from `first_spare` on may leave.
void dismiss_spares(Transport& everybody, int first_spare, int stopped_by);

}  // namespace stagecraft
