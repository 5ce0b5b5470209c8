#include "base/hangup.h"

#include <array>
#include <csignal>
#include <cstddef>
#include <sys/syscall.h>
#include <unistd.h>

namespace stagecraft {
namespace {

bool ignored = false;  // NOLINT: written before main()

/// Without sigaction(), since sanitizers wrap it and have not started yet.
__attribute__((no_sanitize("address", "thread", "undefined"))) void note() {
  std::array<std::size_t, 16> kernel{};  // the kernel's struct sigaction, which begins with the handler
  constexpr std::size_t kSetBytes = 8;
  if (syscall(SYS_rt_sigaction, SIGHUP, nullptr, kernel.data(), kSetBytes) != 0) return;
  ignored = kernel[0] == 1;  // SIG_IGN
}

// An executable's functions in this section run before those of shared libraries.
[[gnu::section(".preinit_array"), gnu::used]] void (*first_of_all)() = note;  // NOLINT

}  // namespace

void hangup_as_given() { std::signal(SIGHUP, ignored ? SIG_IGN : SIG_DFL); }

}  // namespace stagecraft
