#include "partitioner/cluster.h"

#include "test/support/catch.h"

#include <filesystem>
#include <functional>

namespace stagecraft {
namespace {

std::string refused(const std::function<void(Cluster&)>& spoil) {
  Cluster cluster = flat_cluster("c", 4, Link{});
  cluster.memory = Bytes{1000};
  spoil(cluster);
  try {
    validate(cluster, "c.json");
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("every shipped cluster reads", "[cluster]") {
  int files = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(STAGECRAFT_TEST_DATA "/../../configs/clusters")) {
    INFO(entry.path());
    CHECK(read_cluster(entry.path().string()).devices() > 1);
    ++files;
  }
  CHECK(files >= 3);
}

TEST_CASE("devices multiply over levels and the reserve is taken off", "[cluster]") {
  const Cluster cluster =
      read_cluster(STAGECRAFT_TEST_DATA "/../../configs/clusters/two-machines-4-pcie.json");
  CHECK(cluster.devices() == 8);
  CHECK(*cluster.usable_memory() == Bytes{22LL << 30});
  CHECK(cluster.network().between(Rank{0}, Rank{3}).bytes_per_second == 25e9);
  CHECK(cluster.network().between(Rank{3}, Rank{4}).bytes_per_second == 3e9);
  CHECK(cluster.levels[0].shared_by == SharedBy::pair);
  CHECK(cluster.levels[1].shared_by == SharedBy::child);
  CHECK_FALSE(flat_cluster("", 2, Link{}).usable_memory());
}

TEST_CASE("impossible clusters are refused", "[cluster]") {
  CHECK(refused([](Cluster&) {}) == "");
  CHECK(refused([](Cluster& c) {
          c.speed = {1, 2};
        }) == "c.json: /speed: 2 speeds for 4 devices; give one a device, or none");
  CHECK(refused([](Cluster& c) {
          c.speed = {1, 1, 0, 1};
        }) == "c.json: /speed/2: expected at least 1e-06, found 0");
  CHECK(refused([](Cluster& c) {
          c.speed = {1, 1, 1, 1e-310};
        }) == "c.json: /speed/3: expected at least 1e-06, found 1e-310");
  CHECK(refused([](Cluster& c) { c.memory_reserve = Bytes{1000}; }) ==
        "c.json: /memory_reserve_bytes: the reserve of 1000 leaves nothing of the memory of 1000");
  CHECK(refused([](Cluster& c) {
          c.levels.push_back({1 << 30, Link{}});
        }).find("c.json: /levels/1/count: the counts multiply to") == 0);
  const Json slow = json::parse_text(
      R"({"levels": [{"count": 2, "link": {"latency_ms": 0, "bytes_per_second": 1e-310}}]})", "c.json");
  CHECK_THROWS_WITH((void)json::read<Cluster>(slow, {"c.json", ""}),
                    "c.json: /levels/0/link/bytes_per_second: expected at least 1, found 1e-310");
}

}  // namespace stagecraft
