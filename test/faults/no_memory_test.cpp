// What must hold behind an allocation that failed, whichever it was, of what ranks share and what is kept for good.
// scripts/campaign.sh oom tries whole runs.

#include "engine/records/metrics/metrics.h"
#include "test/support/catch.h"
#include "test/support/count_allocations.h"
#include "test/support/ranks.h"
#include "test/support/scratch_folder.h"

#include <atomic>
#include <chrono>
#include <new>
#include <string>
#include <thread>
#include <vector>

namespace stagecraft::test {
namespace {

/// Calls `attempt` with its first allocation failing, then with its second, until none fails. How many did.
template <class Attempt>
std::size_t fail_each_allocation(const Attempt& attempt) {
  for (std::size_t n = 1;; ++n) {
    bool failed = false;
    attempt([&](const auto& work) {
      fail_own_allocation(n);
      try {
        work();
        fail_own_allocation(0);
      } catch (const std::bad_alloc&) {
        failed = true;
        throw;
      }
    });
    if (!failed) return n - 1;
  }
}

}  // namespace

TEST_CASE("a line of metrics without memory for it is written with the next, once", "[no_memory]") {
  const ScratchFolder folder;
  int file = 0;
  const std::size_t failed = fail_each_allocation([&](const auto& without_memory) {
    const std::string path = folder.path(std::to_string(++file));
    MetricsWriter writer(path);
    MetricsRecord record;
    record.step = 1;
    writer.append(record);
    record.step = 2;
    try {
      without_memory([&] { writer.append(record); });
    } catch (const std::bad_alloc&) {
    }
    record.step = 3;
    writer.append(record);
    writer.sync();
    const std::vector<MetricsRecord> read = read_metrics(path);
    REQUIRE(read.size() == 3);
    for (std::size_t i = 0; i < 3; ++i) CHECK(read[i].step == static_cast<std::int64_t>(i) + 1);
  });
  CHECK(failed > 10);
}

TEST_CASE("a rank without memory in a collective fails, and the others hear of it", "[no_memory]") {
  const int last = GENERATE(0, 1);  // to come
  const std::size_t failed = fail_each_allocation([&](const auto& without_memory) {
    std::atomic<int> here = 0;
    std::atomic<bool> lacked = false;
    const auto body = [&](Transport& transport) {
      // Who is to come last waits until the other is in the collective, or nearly.
      if (transport.rank().value == last) {
        while (here == 0) std::this_thread::yield();
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
      ++here;
      if (transport.rank().value == 1) {
        try {
          without_memory([&] { transport.barrier(); });
        } catch (const std::bad_alloc&) {
          lacked = true;
          throw;
        }
      } else {
        transport.barrier();
      }
      transport.barrier();
    };
    try {
      run_ranks(2, {}, body);
      CHECK_FALSE(lacked);
    } catch (const std::exception&) {
      CHECK(lacked);
    }
  });
  CHECK(failed > 0);
}

}  // namespace stagecraft::test
