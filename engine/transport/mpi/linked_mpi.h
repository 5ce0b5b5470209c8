#pragma once

#include "engine/transport/mpi/mpi_library.h"

namespace stagecraft {

/// The MPI that whoever calls this is linked with.
[[nodiscard]] const MpiLibrary& linked_mpi();

}  // namespace stagecraft
