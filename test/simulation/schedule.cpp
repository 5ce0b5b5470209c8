#include "test/simulation/schedule.h"

#include "base/draws.h"

#include <climits>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <vector>

namespace stagecraft::test::schedule {

struct Thread {
  enum class State : std::uint8_t { ready, waits, over };
  int number = 0;
  State state = State::ready;
  const void* what = nullptr;  ///< it waits for
  Nanoseconds until = 0;       ///< it waits at most
  Nanoseconds held = 0;        ///< it does not go on before
  bool woken = false;
  std::uint64_t priority = 0;
  pthread_t handle{};
  bool known = false;                 ///< handle is
  std::atomic<std::uint32_t> go = 0;  ///< a futex: 1 where it is the thread's turn
};

namespace {

/// The real one, without the library's wrapper, which is interposed.
long futex(std::atomic<std::uint32_t>& word, int operation, std::uint32_t value) {
  long result = 0;
  register long timeout asm("r10") = 0;
  asm volatile("syscall"
               : "=a"(result)
               : "a"(long{SYS_futex}), "D"(&word), "S"(long{operation}), "d"(long{value}), "r"(timeout)
               : "rcx", "r11", "memory");
  return result;
}

/// How threads are chosen, which differs from seed to seed: what one way never tries another one does.
struct Manner {
  bool by_priority = false;   ///< the first of an order that changes now and then; else anybody
  std::uint64_t changes = 8;  ///< one decision in so many is another thread's
  std::uint64_t holds = 0;    ///< one decision in so many holds its thread up; 0: none
  Nanoseconds longest_hold = 0;
  Nanoseconds tick = 1;  ///< at most, per decision
};

constexpr Nanoseconds kLongest = 100'000 * kSecond;
constexpr std::int64_t kMostDecisions = 200'000'000;

std::deque<Thread> threads;
Draws draws(0);
Manner manner;
Disturbance disturbance;
std::function<void(int)> on_end;
Counts so_far;
bool in_signal = false;
bool ending = false;
thread_local Thread* current = nullptr;

[[noreturn]] void stuck(const char* why) {
  std::fprintf(stderr, "simulation: %s after %lld decisions and %.1f s\n", why,
               static_cast<long long>(so_far.decisions), static_cast<double>(so_far.time) * 1e-9);
  for (const Thread& thread : threads) {
    const char* const state = thread.state == Thread::State::over    ? "over"
                              : thread.state == Thread::State::waits ? "waits"
                                                                     : "ready";
    std::fprintf(stderr, "  thread %d: %s, for %p\n", thread.number, state, thread.what);
  }
  if (std::getenv("SIMULATE_WAITS") != nullptr) {  // for a debugger
    ending = true;
    ::pause();
  }
  end_process(kStuck);
}

/// Threads whose time has come are ready.
void notice_deadlines() {
  for (Thread& thread : threads) {
    if (thread.state != Thread::State::waits || thread.until > so_far.time) continue;
    thread.state = Thread::State::ready;
    thread.woken = false;
  }
}

bool may_go(const Thread& thread) {
  return thread.state == Thread::State::ready && thread.held <= so_far.time;
}

Thread& choose(Thread* me, bool aside) {
  for (;;) {
    notice_deadlines();
    std::vector<Thread*> ready;
    for (Thread& thread : threads) {
      if (may_go(thread)) ready.push_back(&thread);
    }
    if (ready.empty()) {
      Nanoseconds first = kNever;
      for (const Thread& thread : threads) {
        if (thread.state == Thread::State::ready) first = std::min(first, thread.held);
        if (thread.state == Thread::State::waits) first = std::min(first, thread.until);
      }
      if (first == kNever) stuck("no thread can go on");
      so_far.time = std::max(so_far.time, first);
      if (so_far.time > kLongest) stuck("no end");
      continue;
    }
    if (aside && ready.size() > 1) std::erase(ready, me);
    if (manner.by_priority) {
      return **std::max_element(ready.begin(), ready.end(),
                                [](const Thread* a, const Thread* b) { return a->priority < b->priority; });
    }
    const bool mine = !aside && may_go(*me);
    if (mine && draws.next() % manner.changes != 0) return *me;
    return *ready[draws.next() % ready.size()];
  }
}

void await_turn(Thread& me) {
  while (me.go.load(std::memory_order_acquire) == 0) (void)futex(me.go, FUTEX_WAIT_PRIVATE, 0);
  me.go.store(0, std::memory_order_relaxed);
}

void give_turn(Thread& next) {
  next.go.store(1, std::memory_order_release);
  (void)futex(next.go, FUTEX_WAKE_PRIVATE, INT_MAX);
}

/// Whoever is chosen goes on.
void pass(Thread* me, bool aside) {
  Thread& next = choose(me, aside);
  so_far.trace =
      mix(so_far.trace, static_cast<std::uint64_t>(next.number), static_cast<std::uint64_t>(so_far.time));
  if (&next == me) return;
  const bool comes_back = me->state != Thread::State::over;  // from the turn on it is others who write that
  give_turn(next);
  if (comes_back) await_turn(*me);
}

void come_signal() {
  struct sigaction action {};
  ::sigaction(SIGTERM, nullptr, &action);
  if (action.sa_handler == SIG_DFL) end_process(kTerminated);
  in_signal = true;
  (void)std::raise(SIGTERM);
  in_signal = false;
}

void count_decision(Thread& me) {
  const std::int64_t number = so_far.decisions++;
  if (number > kMostDecisions) stuck("no end");
  so_far.time += draws.between(0, manner.tick);
  if (number == disturbance.kill_at) end_process(kKilled);
  if (number == disturbance.signal_at) come_signal();
  if (number == disturbance.hold_at) me.held = so_far.time + disturbance.hold;
  if (manner.holds != 0 && draws.next() % manner.holds == 0) {
    me.held = std::max(me.held, so_far.time + draws.between(0, manner.longest_hold));
  }
  if (manner.by_priority && draws.next() % manner.changes == 0) me.priority = draws.next();
}

}  // namespace

void begin(std::uint64_t seed, const Disturbance& what, std::function<void(int code)> ends) {
  draws = Draws(mix(seed));
  disturbance = what;
  on_end = std::move(ends);
  manner.by_priority = draws.next() % 3 == 0;
  manner.changes = std::uint64_t{2} << (draws.next() % 7);
  manner.holds = draws.next() % 2 == 0 ? 0 : std::uint64_t{16} << (draws.next() % 6);
  manner.longest_hold = Nanoseconds{10'000} << (draws.next() % 14);  // to 82 ms
  manner.tick = Nanoseconds{200} << (draws.next() % 6);
  so_far = {};
  current = add_thread();
  current->handle = pthread_self();
  current->known = true;
}

Counts counts() { return so_far; }
bool here() { return current != nullptr && !ending; }
Nanoseconds now() { return so_far.time; }
std::uint64_t draw(std::uint64_t bound) { return draws.next() % bound; }

void point(bool aside) {
  if (in_signal) return;
  count_decision(*current);
  pass(current, aside);
}

bool wait(const void* what, Nanoseconds until) {
  Thread& me = *current;
  count_decision(me);
  me.state = Thread::State::waits;
  me.what = what;
  me.until = until;
  me.woken = false;
  pass(&me, false);
  me.what = nullptr;
  return me.woken;
}

namespace {

void wake(Thread& thread) {
  thread.state = Thread::State::ready;
  thread.woken = true;
}

bool waits_for(const Thread& thread, const void* what) {
  return thread.state == Thread::State::waits && thread.what == what;
}

}  // namespace

void wake_all(const void* what) {
  for (Thread& thread : threads) {
    if (waits_for(thread, what)) wake(thread);
  }
}

void wake_one(const void* what) {
  std::vector<Thread*> waiting;
  for (Thread& thread : threads) {
    if (waits_for(thread, what)) waiting.push_back(&thread);
  }
  if (!waiting.empty()) wake(*waiting[draws.next() % waiting.size()]);
}

Thread* add_thread() {
  Thread& thread = threads.emplace_back();
  thread.number = static_cast<int>(threads.size());
  thread.priority = draws.next();
  thread.state = Thread::State::ready;
  return &thread;
}

void forget_thread(Thread* thread) { thread->state = Thread::State::over; }

void know_handle(Thread* thread, pthread_t handle) {
  thread->handle = handle;
  thread->known = true;
}

void enter_thread(Thread* thread) {
  current = thread;
  await_turn(*thread);
}

void leave_thread() {
  Thread* const me = current;
  me->state = Thread::State::over;
  me->known = false;  // the handle may be another thread's soon
  wake_all(me);
  current = nullptr;
  pass(me, false);
}

void await_end(pthread_t handle) {
  for (Thread& thread : threads) {
    if (!thread.known || pthread_equal(thread.handle, handle) == 0) continue;
    while (thread.state != Thread::State::over) (void)wait(&thread);
    return;
  }
}

void end_process(int code) {
  ending = true;
  on_end(code);
  ::_exit(code);
}

}  // namespace stagecraft::test::schedule
