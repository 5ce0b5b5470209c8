// What a scheduled thread (schedule.h) gets in place of libc's functions, in the test's program and in all libraries that
// it has loaded. Locks are libc's own, which are tried; where one is taken, the thread waits in the schedule. All others
// get libc's functions.

#include "test/simulation/schedule.h"

#include <climits>

#include <array>
#include <cerrno>
#include <cstdarg>
#include <ctime>
#include <dlfcn.h>
#include <linux/futex.h>
#include <map>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

namespace schedule = stagecraft::test::schedule;
using schedule::here;
using schedule::kNever;
using schedule::kSecond;
using schedule::Nanoseconds;

namespace {

/// libc's function of that name; `known` keeps it.
template <class Function>
Function* real(Function*& known, const char* name) {
  if (known == nullptr) known = reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
  return known;
}
#define REAL(name)                            \
  [] {                                        \
    static decltype(&::name) known = nullptr; \
    return real(known, #name);                \
  }()

/// Clocks that go on over restarts of the machine are ahead of the others by this.
constexpr Nanoseconds kEpoch = 1'700'000'000 * kSecond;
constexpr Nanoseconds kUptime = 1000 * kSecond;

Nanoseconds ahead(clockid_t clock) {
  switch (clock) {
    case CLOCK_REALTIME:
    case CLOCK_REALTIME_COARSE:
    case CLOCK_TAI:
      return kEpoch;
    case CLOCK_PROCESS_CPUTIME_ID:
    case CLOCK_THREAD_CPUTIME_ID:
      return 0;
    default:
      return kUptime;
  }
}

Nanoseconds from(const timespec& time) { return time.tv_sec * kSecond + time.tv_nsec; }
timespec to(Nanoseconds time) { return {time / kSecond, time % kSecond}; }
/// In the schedule's time.
Nanoseconds deadline(clockid_t clock, const timespec& time) { return from(time) - ahead(clock); }

void lock(pthread_mutex_t* mutex) {
  while (REAL(pthread_mutex_trylock)(mutex) == EBUSY) (void)schedule::wait(mutex);
}

/// Whether it was woken, or woke up for no reason, as it may.
bool wait_for(pthread_cond_t* condition, pthread_mutex_t* mutex, Nanoseconds until) {
  constexpr std::uint64_t kSpurious = 64;
  constexpr Nanoseconds kSoon = 100'000;
  const bool spurious = schedule::draw(kSpurious) == 0;
  if (spurious) until = std::min(until, schedule::now() + kSoon);
  (void)REAL(pthread_mutex_unlock)(mutex);
  schedule::wake_all(mutex);
  const bool woken = schedule::wait(condition, until);
  lock(mutex);
  return woken || spurious;
}

int wait_for(sem_t* semaphore, Nanoseconds until) {
  schedule::point();
  while (::sem_trywait(semaphore) != 0) {
    if (schedule::now() >= until) {
      errno = ETIMEDOUT;
      return -1;
    }
    (void)schedule::wait(semaphore, until);
  }
  return 0;
}

void sleep_until(Nanoseconds until) {
  static const char kNobodyWakes = 0;
  if (until <= schedule::now()) return schedule::point(true);
  while (schedule::now() < until) (void)schedule::wait(&kNobodyWakes, until);
}

struct Body {
  void* (*function)(void*);
  void* argument;
  schedule::Thread* thread;
};

/// At the very end of a thread, behind its variables' destructors.
pthread_key_t end_of_thread() {
  static const pthread_key_t key = [] {
    pthread_key_t made{};
    ::pthread_key_create(&made, [](void*) { schedule::leave_thread(); });
    return made;
  }();
  return key;
}

void* enter(void* given) {
  const Body body = *static_cast<Body*>(given);
  delete static_cast<Body*>(given);
  schedule::enter_thread(body.thread);
  ::pthread_setspecific(end_of_thread(), body.thread);
  return body.function(body.argument);
}

}  // namespace

extern "C" {

int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  if (!here()) return REAL(pthread_mutex_lock)(mutex);
  schedule::point();
  lock(mutex);
  return 0;
}
int pthread_mutex_trylock(pthread_mutex_t* mutex) noexcept {
  if (here()) schedule::point();
  return REAL(pthread_mutex_trylock)(mutex);
}
int pthread_mutex_unlock(pthread_mutex_t* mutex) noexcept {
  const int result = REAL(pthread_mutex_unlock)(mutex);
  if (here()) schedule::wake_all(mutex);
  return result;
}

int pthread_rwlock_rdlock(pthread_rwlock_t* lock) noexcept {
  if (!here()) return REAL(pthread_rwlock_rdlock)(lock);
  schedule::point();
  while (::pthread_rwlock_tryrdlock(lock) == EBUSY) (void)schedule::wait(lock);
  return 0;
}
int pthread_rwlock_wrlock(pthread_rwlock_t* lock) noexcept {
  if (!here()) return REAL(pthread_rwlock_wrlock)(lock);
  schedule::point();
  while (::pthread_rwlock_trywrlock(lock) == EBUSY) (void)schedule::wait(lock);
  return 0;
}
int pthread_rwlock_unlock(pthread_rwlock_t* lock) noexcept {
  const int result = REAL(pthread_rwlock_unlock)(lock);
  if (here()) schedule::wake_all(lock);
  return result;
}

int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex) {
  if (!here()) return REAL(pthread_cond_wait)(condition, mutex);
  (void)wait_for(condition, mutex, kNever);
  return 0;
}
int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const timespec* time) {
  if (!here()) return REAL(pthread_cond_clockwait)(condition, mutex, clock, time);
  return wait_for(condition, mutex, deadline(clock, *time)) ? 0 : ETIMEDOUT;
}
int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex, const timespec* time) {
  if (!here()) return REAL(pthread_cond_timedwait)(condition, mutex, time);
  return wait_for(condition, mutex, deadline(CLOCK_REALTIME, *time)) ? 0 : ETIMEDOUT;
}
int pthread_cond_signal(pthread_cond_t* condition) noexcept {
  if (!here()) return REAL(pthread_cond_signal)(condition);
  schedule::wake_one(condition);
  schedule::point();
  return 0;
}
int pthread_cond_broadcast(pthread_cond_t* condition) noexcept {
  if (!here()) return REAL(pthread_cond_broadcast)(condition);
  schedule::wake_all(condition);
  schedule::point();
  return 0;
}

int pthread_create(pthread_t* handle, const pthread_attr_t* attributes, void* (*function)(void*),
                   void* argument) noexcept {
  if (!here()) return REAL(pthread_create)(handle, attributes, function, argument);
  auto* const body = new Body{function, argument, schedule::add_thread()};
  schedule::Thread* const thread = body->thread;
  const int result = REAL(pthread_create)(handle, attributes, enter, body);
  if (result != 0) {
    schedule::forget_thread(thread);
    delete body;
    return result;
  }
  schedule::know_handle(thread, *handle);
  schedule::point();
  return 0;
}
int pthread_join(pthread_t handle, void** result) {
  if (here()) schedule::await_end(handle);
  return REAL(pthread_join)(handle, result);
}

int pthread_once(pthread_once_t* control, void (*function)()) {
  if (!here()) return REAL(pthread_once)(control, function);
  constexpr int kDone = 2;  // glibc's
  static std::map<pthread_once_t*, bool> under_way;
  while (*control != kDone) {
    if (under_way[control]) {
      (void)schedule::wait(control);
      continue;
    }
    under_way[control] = true;
    try {
      function();
      *control = kDone;
    } catch (...) {
      under_way.erase(control);
      schedule::wake_all(control);
      throw;
    }
    under_way.erase(control);
    schedule::wake_all(control);
  }
  return 0;
}

int sem_wait(sem_t* semaphore) { return here() ? wait_for(semaphore, kNever) : REAL(sem_wait)(semaphore); }
int sem_timedwait(sem_t* semaphore, const timespec* time) {
  if (!here()) return REAL(sem_timedwait)(semaphore, time);
  return wait_for(semaphore, deadline(CLOCK_REALTIME, *time));
}
int sem_clockwait(sem_t* semaphore, clockid_t clock, const timespec* time) {
  if (!here()) return REAL(sem_clockwait)(semaphore, clock, time);
  return wait_for(semaphore, deadline(clock, *time));
}
int sem_post(sem_t* semaphore) noexcept {
  const int result = REAL(sem_post)(semaphore);
  if (here()) schedule::wake_all(semaphore);
  return result;
}

int sched_yield() noexcept {
  if (!here()) return REAL(sched_yield)();
  schedule::point(true);
  return 0;
}
int nanosleep(const timespec* time, timespec* left) {
  if (!here()) return REAL(nanosleep)(time, left);
  sleep_until(schedule::now() + from(*time));
  return 0;
}
int clock_nanosleep(clockid_t clock, int flags, const timespec* time, timespec* left) {
  if (!here()) return REAL(clock_nanosleep)(clock, flags, time, left);
  sleep_until((flags & TIMER_ABSTIME) != 0 ? deadline(clock, *time) : schedule::now() + from(*time));
  return 0;
}
int usleep(useconds_t microseconds) {
  if (!here()) return REAL(usleep)(microseconds);
  sleep_until(schedule::now() + Nanoseconds{microseconds} * 1000);
  return 0;
}
int pause() {
  if (!here()) return REAL(pause)();
  sleep_until(kNever);
  return -1;
}

int clock_gettime(clockid_t clock, timespec* time) noexcept {
  if (!here()) return REAL(clock_gettime)(clock, time);
  schedule::point();
  *time = to(schedule::now() + ahead(clock));
  return 0;
}
int gettimeofday(timeval* time, void* zone) noexcept {
  if (!here()) return REAL(gettimeofday)(time, zone);
  const Nanoseconds now = schedule::now() + kEpoch;
  *time = {now / kSecond, now % kSecond / 1000};
  return 0;
}
time_t time(time_t* also) noexcept {
  if (!here()) return REAL(time)(also);
  const time_t now = (schedule::now() + kEpoch) / kSecond;
  if (also != nullptr) *also = now;
  return now;
}

int poll(pollfd* files, nfds_t count, int timeout_ms) {
  if (!here()) return REAL(poll)(files, count, timeout_ms);
  constexpr Nanoseconds kMillisecond = 1'000'000;
  const Nanoseconds until = timeout_ms < 0 ? kNever : schedule::now() + timeout_ms * kMillisecond;
  for (;;) {
    schedule::point();
    const int ready = REAL(poll)(files, count, 0);
    if (ready != 0 || schedule::now() >= until) return ready;
    sleep_until(std::min(until, schedule::now() + kMillisecond));
  }
}

/// Heartbeats between ranks are left out: the kernel decides when a socket has something.
int socket(int domain, int type, int protocol) noexcept {
  if (!here()) return REAL(socket)(domain, type, protocol);
  errno = EACCES;
  return -1;
}

/// Futexes are what libstdc++ waits with for futures and first uses of static variables.
long syscall(long number, ...) noexcept {
  std::va_list list;
  va_start(list, number);
  std::array<long, 6> words{};
  for (long& word : words) word = va_arg(list, long);
  va_end(list);
  if (!here() || number != SYS_futex) {
    return REAL(syscall)(number, words[0], words[1], words[2], words[3], words[4], words[5]);
  }
  auto* const word = reinterpret_cast<const int*>(words[0]);       // NOLINT(performance-no-int-to-ptr)
  auto* const time = reinterpret_cast<const timespec*>(words[3]);  // NOLINT(performance-no-int-to-ptr)
  const int operation = static_cast<int>(words[1]) & FUTEX_CMD_MASK;
  if (operation == FUTEX_WAKE || operation == FUTEX_WAKE_BITSET) {
    schedule::wake_all(word);
    schedule::point();
    return 1;
  }
  if (operation != FUTEX_WAIT && operation != FUTEX_WAIT_BITSET) {
    errno = ENOSYS;
    return -1;
  }
  if (*word != static_cast<int>(words[2])) {
    errno = EAGAIN;
    return -1;
  }
  Nanoseconds until = kNever;
  if (time != nullptr) {
    const bool real_time = (words[1] & FUTEX_CLOCK_REALTIME) != 0;
    until = operation == FUTEX_WAIT ? schedule::now() + from(*time)
                                    : deadline(real_time ? CLOCK_REALTIME : CLOCK_MONOTONIC, *time);
  }
  if (schedule::wait(word, until)) return 0;
  errno = ETIMEDOUT;
  return -1;
}

void _exit(int code) {
  if (here()) schedule::end_process(code);
  REAL(_exit)(code);
  __builtin_unreachable();
}
void _Exit(int code) noexcept { _exit(code); }

/// std::random_device's: names of files aside.
unsigned stagecraft_simulated_random(void* device) asm("_ZNSt13random_device9_M_getvalEv");
unsigned stagecraft_simulated_random(void* device) {
  using Draw = unsigned (*)(void*);
  static Draw known = nullptr;
  if (here()) return static_cast<unsigned>(schedule::draw(std::uint64_t{1} << 32U));
  if (known == nullptr)
    known = reinterpret_cast<Draw>(::dlsym(RTLD_NEXT, "_ZNSt13random_device9_M_getvalEv"));
  return known(device);
}
}
