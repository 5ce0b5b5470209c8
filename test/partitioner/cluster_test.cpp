#include "partitioner/plan/cluster.h"

#include "base/json.h"
#include "test/support/catch.h"

#include <filesystem>
#include <functional>
#include <map>
#include <string>

namespace stagecraft {
namespace {

std::string cluster_refusal(const std::function<void(Cluster&)>& spoil) {
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

TEST_CASE("every shipped cluster reads and is what its name says", "[cluster]") {
  struct Expected {
    int machine;    ///< devices
    double inside;  ///< bytes per second
    int machines;
    double between;  ///< 0: there is one machine
    SharedBy shared;
  };
  const std::map<std::string, Expected> shipped{
      {"laptop", {2, 4e9, 1, 0, {}}},
      {"one-machine-4-pcie", {4, 25e9, 1, 0, {}}},
      {"two-machines-4-pcie", {4, 25e9, 2, 3e9, SharedBy::child}},
      {"four-machines-4-pcie", {4, 12e9, 4, 1.25e9, SharedBy::child}},
      {"two-machines-8-nvlink", {8, 25e9, 2, 3.125e9, SharedBy::child}},
      {"one-machine-8-h100", {8, 450e9, 1, 0, {}}},
      {"128-machines-8-h100", {8, 450e9, 128, 50e9, SharedBy::pair}},
      {"512-machines-8-h100", {8, 450e9, 512, 50e9, SharedBy::pair}},
      {"2-machines-8-h100", {8, 450e9, 2, 50e9, SharedBy::pair}},
      {"4-machines-8-h100", {8, 450e9, 4, 50e9, SharedBy::pair}},
      {"8-machines-8-h100", {8, 450e9, 8, 50e9, SharedBy::pair}},
      {"16-machines-8-h100", {8, 450e9, 16, 50e9, SharedBy::pair}},
      {"8-groups-of-8-h100", {8, 400e9, 1, 0, {}}},
  };
  std::size_t files = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(STAGECRAFT_TEST_DATA "/../../configs/clusters")) {
    if (entry.path().extension() != ".json") continue;
    INFO(entry.path());
    ++files;
    const auto expected = shipped.find(entry.path().stem().string());
    REQUIRE(expected != shipped.end());
    const Expected& is = expected->second;
    const Cluster cluster = read_cluster(entry.path().string());
    CHECK(cluster.devices() == is.machine * is.machines);
    CHECK(*cluster.usable_memory() >= Bytes{7LL << 30});
    const Network network = cluster.network();
    CHECK(network.between(Rank{0}, Rank{is.machine - 1}).bytes_per_second == is.inside);
    CHECK(cluster.levels[0].shared_by == SharedBy::pair);
    REQUIRE(cluster.levels.size() == (is.machines > 1 ? 2 : 1));
    if (is.machines == 1) continue;
    const Network::Path out = network.path(Rank{is.machine - 1}, Rank{is.machine});
    CHECK(out.link.bytes_per_second == is.between);
    CHECK(out.link.latency > network.between(Rank{0}, Rank{1}).latency);
    CHECK(out.shared == (is.shared == SharedBy::child));
  }
  CHECK(files == shipped.size());
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
  CHECK(cluster_refusal([](Cluster&) {}) == "");
  CHECK(cluster_refusal([](Cluster& c) {
          c.speed = {1, 2};
        }) == "c.json: /speed: 2 speeds for 4 devices; give one per device, or none");
  CHECK(cluster_refusal([](Cluster& c) {
          c.speed = {1, 1, 0, 1};
        }) == "c.json: /speed/2: expected at least 1e-06, found 0");
  CHECK(cluster_refusal([](Cluster& c) {
          c.speed = {1, 1, 1, 1e-310};
        }) == "c.json: /speed/3: expected at least 1e-06, found 1e-310");
  CHECK(cluster_refusal([](Cluster& c) { c.memory_reserve = Bytes{1000}; }) ==
        "c.json: /memory_reserve_bytes: the reserve of 1000 leaves nothing of the memory of 1000");
  CHECK(cluster_refusal([](Cluster& c) {
          c.memory.reset();
          c.memory_reserve = Bytes{1000};
        }) ==
        "c.json: /memory_reserve_bytes: 1000 bytes of a memory that is not given; expected memory_bytes "
        "beside it");
  CHECK(cluster_refusal([](Cluster& c) {
          c.levels.push_back({1 << 30, Link{}});
        }).find("c.json: /levels/1/count: the counts multiply to") == 0);
  const Json slow = json::parse_text(
      R"({"levels": [{"count": 2, "link": {"latency_ms": 0, "bytes_per_second": 1e-310}}]})", "c.json");
  CHECK_THROWS_WITH((void)json::read<Cluster>(slow, {"c.json", ""}),
                    "c.json: /levels/0/link/bytes_per_second: expected at least 1, found 1e-310");
}

TEST_CASE("figures that no device and no link has are slips in the unit", "[cluster]") {
  const auto said = [](const std::function<void(Cluster&)>& spoil) -> std::string {
    Cluster cluster = flat_cluster("c", 4, Link{Seconds{1e-5}, 25e9});
    cluster.memory = Bytes{std::int64_t{80} << 30U};
    spoil(cluster);
    try {
      require_plausible(cluster, "c.json");
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  };
  CHECK(said([](Cluster&) {}).empty());
  const auto link = [](double latency_ms, double bytes_per_second) {
    return [=](Cluster& c) { c.levels[0].link = {Seconds{latency_ms / 1e3}, bytes_per_second}; };
  };
  CHECK(said(link(0, 1e9)).empty());
  for (const double bandwidth : {1.0, 100.0, 450.0, 25e3, 1e19, 1e30}) {
    CHECK(said(link(0.01, bandwidth)).starts_with("c.json: /levels/0/link/bytes_per_second: found "));
    CHECK(said(link(0.01, bandwidth))
              .ends_with("expected 100000 to 1e+18 bytes per second: is it a slip in the unit?"));
  }
  for (const double latency : {1e-6, 1e-300, 5e4}) {
    CHECK(said(link(latency, 1e9)).starts_with("c.json: /levels/0/link/latency_ms: found "));
  }
  for (const std::int64_t memory : {0L, -80L, 80L, 80'000'000'000'000'000L}) {
    CHECK(said([&](Cluster& c) { c.memory = Bytes{memory}; }).starts_with("c.json: /memory_bytes: found "));
  }
  CHECK(said([](Cluster& c) { c.speed = {1, 1, 312e12, 1}; }).starts_with("c.json: /speed/2: found "));
}

}  // namespace stagecraft
