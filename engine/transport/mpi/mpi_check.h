#pragma once

// The one checked wrapper around MPI calls. Communicators of ours return errors instead of aborting.

#include <mpi.h>

namespace stagecraft::transport {

/// Throws PeerError with MPI's own words when `code` is not MPI_SUCCESS. `call` names the function.
void mpi_check(int code, const char* call);

}  // namespace stagecraft::transport
