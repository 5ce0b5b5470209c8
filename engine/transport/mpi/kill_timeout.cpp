#include "engine/transport/mpi/kill_timeout.h"

#include <mpi.h>

namespace stagecraft::transport {
namespace {

/// The value of an integer that is the same for the whole library.
std::optional<int> control_variable(const char* name) {
  int index = 0;
  if (MPI_T_cvar_get_index(name, &index) != MPI_SUCCESS) return std::nullopt;
  MPI_T_cvar_handle handle = MPI_T_CVAR_HANDLE_NULL;
  int count = 0;
  if (MPI_T_cvar_handle_alloc(index, nullptr, &handle, &count) != MPI_SUCCESS) return std::nullopt;
  int value = 0;
  const bool read = count == 1 && MPI_T_cvar_read(handle, &value) == MPI_SUCCESS;
  MPI_T_cvar_handle_free(&handle);
  return read ? std::optional<int>(value) : std::nullopt;
}

}  // namespace

std::optional<Seconds> kill_timeout() {
  int provided = 0;
  if (MPI_T_init_thread(MPI_THREAD_SINGLE, &provided) != MPI_SUCCESS) return std::nullopt;
  const std::optional<int> seconds = control_variable("odls_base_sigkill_timeout");
  MPI_T_finalize();
  return seconds ? std::optional<Seconds>(Seconds{static_cast<double>(*seconds)}) : std::nullopt;
}

}  // namespace stagecraft::transport
