#pragma once

// The threads of a process, one at a time: who goes on, and what time it is, follow from a seed. The same seed makes the
// same run, whatever the machine does.
//
// Threads give way where they call libc (interposed.cpp): at each lock, wait, wake, sleep, look at the clock, start and
// end of a thread. Between two such calls a thread is alone, so races on what no lock guards are not found. No call
// sleeps: where all threads wait, time goes to the first deadline. Computing takes no time; now and then a thread is held
// up instead.
//
// A process begins once, on its only thread, and everything that its threads do from then on is scheduled.

#include <cstdint>
#include <functional>
#include <limits>
#include <pthread.h>

namespace stagecraft::test::schedule {

using Nanoseconds = std::int64_t;
inline constexpr Nanoseconds kNever = std::numeric_limits<Nanoseconds>::max();
inline constexpr Nanoseconds kSecond = 1'000'000'000;

/// What is done to a process beside its disk. Decisions are counted from 0; -1: not done.
struct Disturbance {
  std::int64_t kill_at = -1;    ///< the process ends there, as by SIGKILL
  std::int64_t signal_at = -1;  ///< SIGTERM comes
  std::int64_t hold_at = -1;    ///< the thread that comes to it is held up for so long
  Nanoseconds hold = 0;
};

struct Counts {
  std::int64_t decisions = 0;
  Nanoseconds time = 0;     ///< that has passed
  std::uint64_t trace = 0;  ///< a hash of all decisions
};

/// From now on. `ends`: called once, on whatever thread ends the process, with its exit code: by _exit, by the kill, or
/// because no thread can ever go on (kStuck). It must not return.
void begin(std::uint64_t seed, const Disturbance& disturbance, std::function<void(int code)> ends);
[[nodiscard]] Counts counts();

inline constexpr int kKilled = 137;
inline constexpr int kTerminated = 143;  ///< by the signal, which nobody takes
inline constexpr int kStuck = 98;  ///< all threads wait without a deadline, or for longer than any bound

// For interposed.cpp. All are called by a scheduled thread.

[[nodiscard]] bool here();  ///< the caller is one
[[nodiscard]] Nanoseconds now();
/// Somebody else may go on. `aside`: somebody else does, if there is anybody.
void point(bool aside = false);
/// Until somebody wakes who waits for `what`, or `until`. Whether it was woken.
bool wait(const void* what, Nanoseconds until = kNever);
void wake_one(const void* what);
void wake_all(const void* what);
/// Of things that are left open: below `bound`.
[[nodiscard]] std::uint64_t draw(std::uint64_t bound);
/// Of a thread that its creator makes: goes on when it is chosen.
struct Thread;
[[nodiscard]] Thread* add_thread();
void forget_thread(Thread* thread);  ///< that could not be made
void enter_thread(Thread* thread);
void leave_thread();
void await_end(pthread_t handle);  ///< of a thread that was made here, or not
void know_handle(Thread* thread, pthread_t handle);
[[noreturn]] void end_process(int code);

}  // namespace stagecraft::test::schedule
