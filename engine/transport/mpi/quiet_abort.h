#pragma once

namespace stagecraft::transport {

/// MPI_Abort of all processes, without Open MPI's ten lines behind the one in which we said why. Of other MPIs those
/// stay.
void quiet_abort(int exit_code) noexcept;

}  // namespace stagecraft::transport
