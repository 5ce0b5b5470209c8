#include "engine/run/train/signals.h"

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <ctime>
#include <semaphore.h>
#include <unistd.h>
#include <utility>

namespace stagecraft {
namespace {

/// XCPU: the soft limit on processor time (ulimit -t) is used up.
constexpr std::array kSignals{SIGTERM, SIGUSR1, SIGUSR2, SIGINT, SIGHUP, SIGXCPU, SIGPWR};

std::atomic<int> received_signal{0};  // written by the handler, on whatever thread it runs
static_assert(std::atomic<int>::is_always_lock_free, "all that a handler may touch, but sem_post");
std::atomic<std::int64_t> term_at{0};  ///< nanoseconds of the monotonic clock; 0: none came
static_assert(std::atomic<std::int64_t>::is_always_lock_free, "the handler writes it");
enum class Stage : std::uint8_t {
  starting,
  training,  ///< ranks hear of a signal, and save
  ending     ///< the watcher ends the process, so nobody trains
};
std::atomic<Stage> stage{Stage::starting};
std::atomic<bool> over{false};
sem_t came;                                              // NOLINT: posted by the handler
std::array<struct sigaction, kSignals.size()> previous;  // NOLINT: what to restore

/// clock_gettime may be called by a handler, std::chrono's clocks need not be.
std::int64_t now() {
  constexpr std::int64_t kNano = 1'000'000'000;
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * kNano + time.tv_nsec;
}

extern "C" void remember(int signal) {
  if (signal == SIGINT && received_signal == SIGINT) {
    std::signal(SIGINT, SIG_DFL);
    std::raise(SIGINT);
  }
  const int error = errno;
  if (signal == SIGTERM && term_at == 0) term_at = now();
  received_signal = signal;
  sem_post(&came);
  errno = error;
}

void watch(const std::function<void(int)>& at_start) {
  for (;;) {
    while (sem_wait(&came) != 0) {  // EINTR
    }
    if (over) return;
    Stage before = Stage::starting;
    if (stage.compare_exchange_strong(before, Stage::ending)) at_start(received_signal);
  }
}

}  // namespace

StopSignals::StopSignals(std::function<void(int)> at_start) {
  received_signal = 0;
  term_at = 0;
  stage = Stage::starting;
  over = false;
  sem_init(&came, 0, 0);
  watcher_ = std::thread(watch, std::move(at_start));
  struct sigaction action {};
  action.sa_handler = remember;
  action.sa_flags = SA_RESTART;
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals.at(i), nullptr, &previous.at(i));
    const bool ignored = kSignals.at(i) == SIGHUP && previous.at(i).sa_handler == SIG_IGN;
    if (!ignored) sigaction(kSignals.at(i), &action, nullptr);
  }
}

StopSignals::~StopSignals() {
  for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals.at(i), &previous.at(i), nullptr);
  over = true;
  sem_post(&came);
  watcher_.join();
}

void StopSignals::training_begins() {
  Stage before = Stage::starting;
  if (stage.compare_exchange_strong(before, Stage::training)) return;
  while (before == Stage::ending) ::pause();  // a signal came first, and the watcher ends the process
}

int StopSignals::received() { return received_signal; }

Seconds StopSignals::since_term() {
  const std::int64_t at = term_at;
  return at == 0 ? Seconds{0} : Seconds{static_cast<double>(now() - at) * 1e-9};
}

}  // namespace stagecraft
