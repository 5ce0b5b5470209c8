#include "engine/run/signals.h"

#include <array>
#include <atomic>
#include <csignal>

namespace stagecraft {
namespace {

constexpr std::array kSignals{SIGTERM, SIGUSR1, SIGINT};

std::atomic<int> received_signal{0};  // written by the handler, on whatever thread it runs
static_assert(std::atomic<int>::is_always_lock_free, "all that a handler may touch");
std::array<struct sigaction, kSignals.size()> previous;  // NOLINT: what to restore

extern "C" void remember(int signal) {
  if (signal == SIGINT && received_signal == SIGINT) {
    std::signal(SIGINT, SIG_DFL);
    std::raise(SIGINT);
  }
  received_signal = signal;
}

}  // namespace

StopSignals::StopSignals() {
  received_signal = 0;
  struct sigaction action {};
  action.sa_handler = remember;
  action.sa_flags = SA_RESTART;
  for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals.at(i), &action, &previous.at(i));
}

StopSignals::~StopSignals() {
  for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals.at(i), &previous.at(i), nullptr);
}

int StopSignals::received() { return received_signal; }

}  // namespace stagecraft
