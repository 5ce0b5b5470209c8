#pragma once

// What this MPI's launcher does to ranks that it is told to end.

#include "base/ids.h"

#include <optional>

namespace stagecraft::transport {

/// Open MPI's odls_base_sigkill_timeout, wherever it was set: when mpirun gets SIGTERM, SIGINT or SIGHUP, it
/// sends its ranks SIGTERM after that long and SIGKILL after as long again. Nothing where this MPI has no
/// such variable. May be called before MPI_Init, on any one thread.
[[nodiscard]] std::optional<Seconds> kill_timeout();

}  // namespace stagecraft::transport
