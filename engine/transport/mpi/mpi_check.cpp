#include "engine/transport/mpi/mpi_check.h"

#include "base/error.h"

#include <fmt/format.h>

#include <string>

namespace stagecraft::transport {

void mpi_check(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  std::string text(MPI_MAX_ERROR_STRING, '\0');
  int length = 0;
  if (MPI_Error_string(code, text.data(), &length) != MPI_SUCCESS) length = 0;
  text.resize(static_cast<std::size_t>(length));
  throw PeerError(fmt::format("{} failed: {}", call, text.empty() ? fmt::format("error {}", code) : text));
}

}  // namespace stagecraft::transport
