// Preloaded into a command (LD_PRELOAD), lets one of its requests for memory or a thread fail, the n-th after main began. It
// starts the command's main again and again in children of one process, so that a trial takes no loading of libraries:
//
//   STAGECRAFT_FAILING_MEMORY=1 LD_PRELOAD=libfailing_memory.so stagecraft train run.json --resume
//
// reads lines from standard input, "MODE N SECONDS FOLDER", and answers each with "STATUS COUNT PEAK":
//
//   MODE    "fail": the N-th request fails, none for N = 0.  "list": none does, and the file "places" in FOLDER gets the number of
//           each request that was the first with its stack of callers
//   FOLDER  where main runs, with its output in the file "said", and in "place" the stack of the request that failed
//   STATUS  as waitpid has it, 0 for a main that returned 0; -1: it was killed, because it took more than SECONDS
//   COUNT   the requests that it has made
//   PEAK    the most memory that it had, in KiB
//
// Of ranks that are processes one is hurt, and each is started but once:
//
//   STAGECRAFT_FAILING_RANK="RANK MODE N FOLDER" mpirun -np 2 -x LD_PRELOAD=libfailing_memory.so stagecraft train run.json --resume
//
// FOLDER gets "places" or "place" there. What Open MPI asks for itself never fails: what it does then is not ours. The next one does.
//
// Counted are malloc and its kin, which operator new calls, anonymous memory from mmap, and pthread_create.

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <dlfcn.h>
#include <execinfo.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern "C" {
// What malloc is without us, of glibc.
void* __libc_malloc(std::size_t);
void* __libc_calloc(std::size_t, std::size_t);
void* __libc_realloc(void*, std::size_t);
void* __libc_memalign(std::size_t, std::size_t);
}

namespace {

constexpr int kMostFrames = 64;
constexpr std::size_t kPlaces = 1U << 17U;
constexpr std::size_t kMostPlaces = kPlaces / 2;

using Main = int (*)(int, char**, char**);
using CreateThread = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);

Main real_main = nullptr;
CreateThread create_thread = nullptr;

/// In memory that the server shares with its children.
struct Shared {
  std::atomic<long> count;
};
Shared* shared = nullptr;

std::atomic<bool> counting = false;
std::atomic<long> failing = 0;
bool listing = false;
std::atomic<std::uint64_t> seen[kPlaces];
std::atomic<std::size_t> places = 0;
int folder_of_places = AT_FDCWD;
int places_file = -1;
thread_local bool ours = false;

/// Whether a library of Open MPI's asks.
bool is_of_mpi(void* const* frames, int depth) {
  for (int i = 0; i < depth; ++i) {
    Dl_info info{};
    if (::dladdr(frames[i], &info) == 0 || info.dli_fname == nullptr) continue;
    for (const char* name : {"/openmpi", "libmpi", "libopen-", "pmix", "libhwloc", "libevent"}) {
      if (std::strstr(info.dli_fname, name) != nullptr) return true;
    }
  }
  return false;
}

/// Notes the place of request `n` where it is new.
void note(long n) {
  void* frames[kMostFrames];
  const int depth = ::backtrace(frames, kMostFrames);
  std::uint64_t hash = 1469598103934665603U;
  for (int i = 2; i < depth; ++i) hash = (hash ^ reinterpret_cast<std::uint64_t>(frames[i])) * 1099511628211U;
  if (hash == 0) hash = 1;
  for (std::size_t at = hash % kPlaces;; at = (at + 1) % kPlaces) {
    std::uint64_t there = 0;
    if (seen[at].compare_exchange_strong(there, hash)) break;
    if (there == hash) return;
  }
  if (++places > kMostPlaces) _exit(99);
  if (is_of_mpi(frames, depth)) return;
  char line[32];
  const int size = std::snprintf(line, sizeof(line), "%ld\n", n);
  (void)!::write(places_file, line, static_cast<std::size_t>(size));
}

/// Where the failure was, for who reads what came of it. False: it is not to be.
bool tell_place() {
  void* frames[kMostFrames];
  const int depth = ::backtrace(frames, kMostFrames);
  if (is_of_mpi(frames, depth)) return false;
  const int file = ::openat(folder_of_places, "place", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  ::backtrace_symbols_fd(frames, depth, file);
  ::close(file);
  return true;
}

/// Whether this request fails.
bool fails() {
  if (!counting || ours) return false;
  const long n = ++shared->count;
  if (n != failing && !listing) return false;
  ours = true;
  bool fails = false;
  if (listing) {
    note(n);
  } else if (tell_place()) {
    fails = true;
  } else {
    ++failing;
  }
  ours = false;
  errno = ENOMEM;
  return fails;
}

void begin_counting(const char* mode, long n) {
  listing = std::strcmp(mode, "list") == 0;
  if (listing)
    places_file = ::openat(folder_of_places, "places", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  failing = n;
  counting = true;
}

int run_main(const char* mode, long n, const char* folder, int argc, char** argv, char** environment) {
  if (::chdir(folder) != 0) _exit(98);
  const int output = ::open("said", O_WRONLY | O_CREAT | O_TRUNC, 0644);
  const int nothing = ::open("/dev/null", O_RDONLY);
  if (::dup2(nothing, 0) < 0 || ::dup2(output, 1) < 0 || ::dup2(output, 2) < 0) _exit(98);
  ::close(output);
  ::close(nothing);
  begin_counting(mode, n);
  return real_main(argc, argv, environment);
}

void share_count() {
  shared = static_cast<Shared*>(
      ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  void* warm[1];
  (void)::backtrace(warm, 1);  // loads what it needs
}

/// This process's main, where it is the rank that is hurt.
int run_rank(int argc, char** argv, char** environment) {
  const char* const rank = std::getenv("OMPI_COMM_WORLD_RANK");
  char mode[16], folder[4000];
  long n = 0;
  int hurt = 0;
  const char* const words = std::getenv("STAGECRAFT_FAILING_RANK");
  if (std::sscanf(words, "%d %15s %ld %3999s", &hurt, mode, &n, folder) != 4) return 97;
  if (rank != nullptr && std::atoi(rank) == hurt) {
    share_count();
    folder_of_places = ::open(folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (folder_of_places < 0) return 98;
    begin_counting(mode, n);
  }
  return real_main(argc, argv, environment);
}

/// The status of a child, which has so many seconds.
int await(pid_t child, double seconds, rusage& used) {
  timespec begun{}, now{};
  ::clock_gettime(CLOCK_MONOTONIC, &begun);
  for (int status = 0;;) {
    if (::wait4(child, &status, WNOHANG, &used) == child) return status;
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    if (static_cast<double>(now.tv_sec - begun.tv_sec) > seconds) {
      ::kill(child, SIGKILL);
      ::wait4(child, &status, 0, &used);
      return -1;
    }
    const timespec moment{0, 500'000};
    ::nanosleep(&moment, nullptr);
  }
}

int serve(int argc, char** argv, char** environment) {
  share_count();
  char line[4096], mode[16], folder[4000];
  long n = 0;
  double seconds = 0;
  while (std::fgets(line, sizeof(line), stdin) != nullptr) {
    if (std::sscanf(line, "%15s %ld %lf %3999s", mode, &n, &seconds, folder) != 4) return 97;
    shared->count = 0;
    std::fflush(stdout);
    const pid_t child = ::fork();
    if (child == 0) return run_main(mode, n, folder, argc, argv, environment);
    rusage used{};
    const int status = child < 0 ? -2 : await(child, seconds, used);
    std::printf("%d %ld %ld\n", status, shared->count.load(), used.ru_maxrss);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace

extern "C" {

void* malloc(std::size_t size) { return fails() ? nullptr : __libc_malloc(size); }
void* calloc(std::size_t count, std::size_t size) { return fails() ? nullptr : __libc_calloc(count, size); }
void* realloc(void* memory, std::size_t size) { return fails() ? nullptr : __libc_realloc(memory, size); }
void* memalign(std::size_t alignment, std::size_t size) {
  return fails() ? nullptr : __libc_memalign(alignment, size);
}
void* aligned_alloc(std::size_t alignment, std::size_t size) { return memalign(alignment, size); }
int posix_memalign(void** memory, std::size_t alignment, std::size_t size) {
  void* const made = memalign(alignment, size);
  if (made == nullptr) return ENOMEM;
  *memory = made;
  return 0;
}

void* mmap(void* at, std::size_t size, int protection, int flags, int file, off_t offset) {
  if ((flags & MAP_ANONYMOUS) != 0 && fails()) return MAP_FAILED;
  const long mapped = ::syscall(SYS_mmap, at, size, protection, flags, file, offset);
  return reinterpret_cast<void*>(mapped);  // NOLINT(performance-no-int-to-ptr)
}
void* mmap64(void* at, std::size_t size, int protection, int flags, int file, off_t offset) {
  return mmap(at, size, protection, flags, file, offset);
}

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*body)(void*), void* with) {
  if (create_thread == nullptr) {
    create_thread = reinterpret_cast<CreateThread>(::dlsym(RTLD_NEXT, "pthread_create"));
  }
  return fails() ? EAGAIN : create_thread(thread, attributes, body, with);
}

int __libc_start_main(Main main, int argc, char** argv, void (*init)(), void (*fini)(), void (*end)(),
                      void* stack) {
  using Start = int (*)(Main, int, char**, void (*)(), void (*)(), void (*)(), void*);
  real_main = main;
  const auto start = reinterpret_cast<Start>(::dlsym(RTLD_NEXT, "__libc_start_main"));
  const Main instead = std::getenv("STAGECRAFT_FAILING_MEMORY") != nullptr ? serve
                       : std::getenv("STAGECRAFT_FAILING_RANK") != nullptr ? run_rank
                                                                           : main;
  return start(instead, argc, argv, init, fini, end, stack);
}
}
