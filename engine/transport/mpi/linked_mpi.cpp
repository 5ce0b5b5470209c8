#include "engine/transport/mpi/linked_mpi.h"

#include "engine/transport/mpi/device_memory.h"
#include "engine/transport/mpi/kill_timeout.h"
#include "engine/transport/mpi/mpi_session.h"
#include "engine/transport/mpi/quiet_abort.h"

#include <mpi.h>

#include <array>
#include <csignal>
#include <unistd.h>

namespace stagecraft {
namespace {

constexpr unsigned kPatience = 5;  // seconds
volatile std::sig_atomic_t leaving_with = 0;

class LinkedMpi final : public MpiLibrary {
 public:
  [[nodiscard]] std::unique_ptr<ProcessSession> connect(MpiThreads threads) const override {
    return std::make_unique<MpiSession>(threads);
  }
  void leave(int exit_code) const noexcept override {
    int started = 0;
    MPI_Initialized(&started);
    if (started != 0) return;
    // Others may never come to start it.
    leaving_with = exit_code;
    std::signal(SIGALRM, [](int) { _exit(leaving_with); });
    alarm(kPatience);
    if (MPI_Init(nullptr, nullptr) == MPI_SUCCESS) transport::quiet_abort(exit_code);
  }
  [[nodiscard]] std::string version() const override {
    std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
    int length = 0;
    MPI_Get_library_version(text.data(), &length);  // allowed before MPI_Init
    const std::string version(text.data(), static_cast<std::size_t>(length));
    return version.substr(0, version.find(','));
  }
  [[nodiscard]] bool built_for_cuda() const override { return transport::mpi_built_for_cuda(); }
  [[nodiscard]] std::optional<Seconds> kill_timeout() const override { return transport::kill_timeout(); }
};

}  // namespace

const MpiLibrary& linked_mpi() {
  static const LinkedMpi library;
  return library;
}

}  // namespace stagecraft
