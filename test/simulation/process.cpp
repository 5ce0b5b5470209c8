#include "test/simulation/process.h"

#include "base/error.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

namespace stagecraft::test {
namespace {

constexpr std::size_t kMostImage = std::size_t{64} << 20U;
constexpr std::size_t kMostText = 16000;
constexpr unsigned kMostSeconds = 120;

/// What a process leaves, in memory that it shares with its parent.
struct Remains {
  std::int64_t disk_calls;
  schedule::Counts counts;
  std::size_t said_size, image_size;
  char said[kMostText];
  char image[kMostImage];
};

Remains& remains() {
  static Remains* const shared = [] {
    void* const made = ::mmap(nullptr, sizeof(Remains), PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    STAGECRAFT_CHECK(made != MAP_FAILED, "no memory to share with the processes");
    return static_cast<Remains*>(made);
  }();
  return *shared;
}

void leave(const SimulatedDisk& disk, const std::string& said) {
  Remains& all = remains();
  all.disk_calls = disk.calls();
  all.counts = schedule::counts();
  all.said_size = std::min(said.size(), kMostText);
  std::memcpy(all.said, said.data(), all.said_size);
  const std::string image = disk.image();
  if (image.size() > kMostImage) return;  // and nothing is left
  std::memcpy(all.image, image.data(), image.size());
  all.image_size = image.size();
}

/// A file for standard error that has no name.
int error_file() {
  const int file = ::memfd_create("standard error", MFD_CLOEXEC);
  STAGECRAFT_CHECK(file >= 0, "no file for standard error");
  return file;
}

std::string read_all(int file) {
  std::string text(kMostText, '\0');
  const ssize_t got = ::pread(file, text.data(), text.size(), 0);
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  return text;
}

[[noreturn]] void live(SimulatedDisk& disk, std::uint64_t seed, const schedule::Disturbance& disturbance,
                       const ProcessBody& body, int errors) {
  ::dup2(errors, STDERR_FILENO);
  ::alarm(kMostSeconds);
  at::set_num_threads(
      1);  // LibTorch makes its pool anew behind a fork, and two threads may not do that at once
  std::string said;
  schedule::begin(seed, disturbance, [&](int) { leave(disk, said); });
  schedule::end_process(body(disk, said));
}

}  // namespace

Ended run_process(std::unique_ptr<SimulatedDisk>& disk, std::uint64_t seed,
                  const schedule::Disturbance& disturbance, const ProcessBody& body) {
  remains().image_size = remains().said_size = 0;
  const int errors = error_file();
  std::fflush(nullptr);
  const pid_t child = ::fork();
  STAGECRAFT_CHECK(child >= 0, "no process");
  if (child == 0) live(*disk, seed, disturbance, body, errors);
  int status = 0;
  ::waitpid(child, &status, 0);
  Ended ended;
  ended.code = WIFEXITED(status)                                    ? WEXITSTATUS(status)
               : WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM ? schedule::kStuck
                                                                    : -1;
  ended.errors = read_all(errors);
  ::close(errors);
  const Remains& all = remains();
  if (ended.code == -1) ended.errors += "\nsignal " + std::to_string(WTERMSIG(status));
  if (all.image_size == 0) return ended;
  ended.said.assign(all.said, all.said_size);
  ended.disk_calls = all.disk_calls;
  ended.counts = all.counts;
  disk = SimulatedDisk::from_image(std::string(all.image, all.image_size));
  return ended;
}

}  // namespace stagecraft::test
