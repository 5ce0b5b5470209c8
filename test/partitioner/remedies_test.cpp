#include "partitioner/advice/remedies.h"

#include "test/partitioner/example.h"
#include "test/support/catch.h"

#include <algorithm>

namespace stagecraft {
namespace {

using test::example;
using test::machine;

bool fits(const Cluster& cluster, const PlanRequest& request) {
  try {
    (void)make_plan(example(), cluster, request);
    return true;
  } catch (const RefusedError&) {
    return false;
  }
}

}  // namespace

TEST_CASE("what would fit does, and less of it does not", "[remedies]") {
  PlanRequest request;
  request.micro_batch_size = 8;
  request.micro_batches = 8;
  std::size_t told = 0;
  for (const std::int64_t mebibytes : {12, 16, 20, 26, 30}) {
    for (const int devices : {1, 2}) {
      const Cluster cluster = machine(devices, Bytes{mebibytes << 20});
      if (fits(cluster, request)) continue;
      for (const Remedy& remedy : remedies(example(), cluster, {request})) {
        INFO(mebibytes << " MiB, " << devices << " devices, kind " << static_cast<int>(remedy.kind));
        ++told;
        CHECK(fits(remedy.cluster, remedy.request));
        CHECK(remedy.needs <= *remedy.cluster.usable_memory());
        Cluster less = remedy.cluster;
        if (remedy.kind == Remedy::Kind::more_devices) {
          for (less.levels[0].count = devices; less.levels[0].count < remedy.cluster.levels[0].count;
               ++less.levels[0].count) {
            CHECK_FALSE(fits(less, request));
          }
        }
        if (remedy.kind == Remedy::Kind::more_memory) {
          less.memory = Bytes{remedy.cluster.memory->value - remedy.cluster.memory->value / 500};
          CHECK_FALSE(fits(less, request));
        }
      }
    }
  }
  CHECK(told > 5);
}

TEST_CASE("for a schedule that orders by time 1f1b is asked what would fit", "[remedies]") {
  PlanRequest request;
  request.micro_batch_size = 8;
  request.micro_batches = 8;
  request.schedule.name = "zb_v";
  const Cluster cluster = machine(2, Bytes{16 << 20});
  REQUIRE_FALSE(fits(cluster, request));
  const std::vector<Remedy> found = remedies(example(), cluster, {request});
  REQUIRE_FALSE(found.empty());
  for (const Remedy& remedy : found) {
    CHECK(remedy.request.schedule.name == "1f1b");
    CHECK(fits(remedy.cluster, remedy.request));
  }
}

TEST_CASE("of a search over orders with so many stages, what would fit does", "[remedies]") {
  PlanRequest request;
  request.micro_batch_size = 8;
  request.micro_batches = 8;
  request.schedule.name = "auto";
  request.stages = 2;
  const Cluster cluster = machine(2, Bytes{16 << 20});
  REQUIRE_FALSE(fits(cluster, request));
  const std::vector<Remedy> found = remedies(example(), cluster, {request});
  CHECK_FALSE(found.empty());
  for (const Remedy& remedy : found) CHECK(fits(remedy.cluster, remedy.request));
}

}  // namespace stagecraft
