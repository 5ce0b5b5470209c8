// What must hold behind an allocation that failed, whichever it was, of what ranks share and what is kept for good.
// scripts/campaign.sh oom tries whole runs.

#include "engine/records/metrics/metrics.h"
#include "test/support/catch.h"
#include "test/support/count_allocations.h"
#include "test/support/ranks.h"
#include "test/support/scratch_folder.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <new>
#include <string>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

namespace stagecraft::test {
namespace {

constexpr int kTerminated = 9;

/// Whether `work` did without its n-th allocation, or had not so many.
enum class Came : std::uint8_t { through, short_of_memory };
template <class Work>
Came without_allocation(std::size_t n, const Work& work) {
  fail_own_allocation(n);
  try {
    work();
  } catch (const std::bad_alloc&) {
    return Came::short_of_memory;
  }
  fail_own_allocation(0);
  return Came::through;
}

/// In a process of its own, which may end where no exception can go: in a destructor of the JSON library. Its exit code.
template <class Work>
int in_child(const Work& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    std::set_terminate([] { ::_exit(kTerminated); });
    ::_exit(work());
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  return WEXITSTATUS(status);
}

}  // namespace

TEST_CASE("a line of metrics without memory for it is written with the next, once", "[no_memory]") {
  const ScratchFolder folder;
  constexpr int kThrew = 1, kWent = 0;
  int threw = 0;
  for (std::size_t n = 1;; ++n) {
    INFO("allocation " << n);
    const std::string path = folder.path(std::to_string(n));
    const int ended = in_child([&] {
      MetricsWriter writer(path);
      MetricsRecord record;
      record.step = 1;
      writer.append(record);
      record.step = 2;
      const Came came = without_allocation(n, [&] { writer.append(record); });
      record.step = 3;
      writer.append(record);
      writer.sync();
      return came == Came::through ? kWent : kThrew;
    });
    const std::vector<MetricsRecord> read = read_metrics(path);
    REQUIRE(read.size() == (ended == kTerminated ? 1 : 3));
    for (std::size_t i = 0; i < read.size(); ++i) CHECK(read[i].step == static_cast<std::int64_t>(i) + 1);
    threw += ended == kThrew ? 1 : 0;
    if (ended == kWent) break;
  }
  CHECK(threw > 10);
}

TEST_CASE("a rank without memory in a collective fails, and the others hear of it", "[no_memory]") {
  const int last = GENERATE(0, 1);  // to come
  for (std::size_t n = 1;; ++n) {
    INFO("allocation " << n);
    std::atomic<int> here = 0;
    std::atomic<bool> lacked = false;
    const auto body = [&](Transport& transport) {
      // Who is to come last waits until the other is in the collective, or nearly.
      if (transport.rank().value == last) {
        while (here == 0) std::this_thread::yield();
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
      ++here;
      if (transport.rank().value == 0) {
        transport.barrier();
      } else if (without_allocation(n, [&] { transport.barrier(); }) == Came::short_of_memory) {
        lacked = true;
        throw std::bad_alloc();
      }
      transport.barrier();
    };
    try {
      run_ranks(2, {}, body);
      CHECK_FALSE(lacked);
    } catch (const std::exception&) {
      CHECK(lacked);
    }
    if (!lacked) {
      CHECK(n > 2);
      break;
    }
  }
}

}  // namespace stagecraft::test
