#include "schedules/costs/collectives.h"

#include "test/support/catch.h"

#include <vector>

using namespace stagecraft;

namespace {

std::vector<Rank> ranks(const std::vector<int>& numbers) {
  std::vector<Rank> members;
  for (const int n : numbers) members.emplace_back(n);
  return members;
}

/// Two racks of two machines of two devices; 1, 2, 4 seconds latency and 64, 16, 4 bytes per second.
Network three_levels() {
  return Network{{{2, Link{Seconds{1}, 64}}, {2, Link{Seconds{2}, 16}}, {2, Link{Seconds{4}, 4}}}};
}

}  // namespace

TEST_CASE("an all-reduce of one member takes no time", "[collectives]") {
  CHECK(all_reduce(three_levels(), ranks({3}), Bytes{1 << 20}).time() == Seconds{});
}

TEST_CASE("on one level there is only the ring", "[collectives]") {
  const AllReduce two = all_reduce(three_levels(), ranks({0, 1}), Bytes{128});
  CHECK(two.ring.value == 2 * (1 + 64.0 / 64));
  CHECK_FALSE(two.by_level);
  // One device of each machine of a rack: only the second level connects them.
  const AllReduce across = all_reduce(three_levels(), ranks({0, 2}), Bytes{128});
  CHECK(across.ring.value == 2 * (2 + 64.0 / 16));
  CHECK_FALSE(across.by_level);
}

TEST_CASE("by levels each level carries the share that those inside it left", "[collectives]") {
  const AllReduce all = all_reduce(three_levels(), ranks({0, 1, 2, 3, 4, 5, 6, 7}), Bytes{512});
  CHECK(all.ring.value == 2 * 7 * (4 + 64.0 / 4));
  CHECK(all.by_level->value == 2 * (1 + 256.0 / 64) + 2 * (2 + 128.0 / 16) + 2 * (4 + 64.0 / 4));
  CHECK(all.uses_levels());
  CHECK(all.time() == *all.by_level);
  // One device per machine: nothing is left to the innermost level.
  const AllReduce some = all_reduce(three_levels(), ranks({1, 2, 5, 6}), Bytes{512});
  CHECK(some.by_level->value == 2 * (2 + 256.0 / 16) + 2 * (4 + 128.0 / 4));
}

TEST_CASE("on a shared card the flows of all devices behind it divide its bandwidth", "[collectives]") {
  Network network = three_levels();
  network.levels[1].shared_by = SharedBy::child;
  const AllReduce all = all_reduce(network, ranks({0, 1, 2, 3}), Bytes{512});
  CHECK(all.by_level->value == 2 * (1 + 256.0 / 64) + 2 * (2 + 2 * 128.0 / 16));
  CHECK(all.ring.value == 2 * 3 * (2 + 128.0 / 16));
}

TEST_CASE("members that lie unevenly go around the ring", "[collectives]") {
  for (const auto& uneven : {std::vector<int>{0, 1, 2}, {0, 1, 4, 6}, {0, 1, 2, 3, 4, 5}}) {
    const AllReduce reduce = all_reduce(three_levels(), ranks(uneven), Bytes{512});
    CHECK_FALSE(reduce.by_level);
    CHECK(reduce.time() == reduce.ring);
  }
}

TEST_CASE("the ring wins where a shared card leaves levels nothing to save", "[collectives]") {
  const Network alike{{{2, Link{Seconds{}, 16}}, {2, Link{Seconds{}, 16}, SharedBy::child}}};
  const AllReduce reduce = all_reduce(alike, ranks({0, 1, 2, 3}), Bytes{512});
  CHECK(reduce.ring.value == 2 * 3 * 128.0 / 16);
  CHECK(reduce.by_level->value == 2 * 256.0 / 16 + 2 * 2 * 128.0 / 16);
  CHECK_FALSE(reduce.uses_levels());
  CHECK(reduce.time() == reduce.ring);
}
