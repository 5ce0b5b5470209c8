#include "base/launch.h"
#include "cli/commands.h"
#include "engine/transport/mpi/mpi_library.h"

#include <exception>

namespace stagecraft::cli {

void leave_launcher(int exit_code) noexcept try {
  // Others than Open MPI's mpirun say little, or would say more.
  if (exit_code != 0 && detect_launch().variable.starts_with("OMPI_")) mpi_library().leave(exit_code);
} catch (const std::exception&) {
  // A variable that is no number has been told of, and there may be no MPI.
}

}  // namespace stagecraft::cli
