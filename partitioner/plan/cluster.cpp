#include "partitioner/plan/cluster.h"

#include "base/file_kind.h"
#include "base/json.h"

#include <fmt/format.h>

#include <algorithm>

namespace stagecraft {

namespace {
constexpr std::int64_t kMostDevices = 1'000'000;  // more is a slip of the pen
}

int Cluster::devices() const {
  std::int64_t product = 1;
  for (const NetworkLevel& level : levels) product = std::min(product * level.count, kMostDevices);
  return static_cast<int>(product);
}

double Cluster::fastest() const { return speed.empty() ? 1 : *std::max_element(speed.begin(), speed.end()); }

void validate(const Cluster& cluster, const std::string& file) {
  std::int64_t product = 1;
  for (std::size_t i = 0; i < cluster.levels.size(); ++i) {
    product *= cluster.levels[i].count;
    if (product > kMostDevices) {
      throw InputError(
          {file, fmt::format("/levels/{}/count", i)},
          fmt::format("the counts multiply to {} devices; at most {} are understood", product, kMostDevices));
    }
  }
  if (!cluster.speed.empty() && static_cast<std::int64_t>(cluster.speed.size()) != product) {
    throw InputError({file, "/speed"}, fmt::format("{} speeds for {} devices; give one per device, or none",
                                                   cluster.speed.size(), product));
  }
  for (std::size_t i = 0; i < cluster.speed.size(); ++i) {
    if (!(cluster.speed[i] >= kLeastSpeed)) {
      throw InputError({file, fmt::format("/speed/{}", i)},
                       fmt::format("expected at least {}, found {}", kLeastSpeed, cluster.speed[i]));
    }
  }
  if (!cluster.memory && cluster.memory_reserve > Bytes{}) {
    throw InputError({file, "/memory_reserve_bytes"},
                     fmt::format("{} bytes of a memory that is not given; expected memory_bytes beside it",
                                 cluster.memory_reserve.value));
  }
  if (cluster.memory && cluster.memory_reserve >= *cluster.memory) {
    throw InputError({file, "/memory_reserve_bytes"},
                     fmt::format("the reserve of {} leaves nothing of the memory of {}",
                                 cluster.memory_reserve.value, cluster.memory->value));
  }
}

void require_plausible(const Cluster& cluster, const std::string& file) {
  const auto require = [&](const std::string& pointer, double found, double least, double most,
                           const char* unit) {
    if (found >= least && found <= most) return;
    throw InputError({file, pointer},
                     fmt::format("found {:.15g}, expected {:.6g} to {:.6g} {}: is it a slip in the "
                                 "unit?",
                                 found, least, most, unit));
  };
  for (std::size_t i = 0; i < cluster.levels.size(); ++i) {
    const Link& link = cluster.levels[i].link;
    const std::string pointer = fmt::format("/levels/{}/link", i);
    require(pointer + "/bytes_per_second", link.bytes_per_second, 1e5, 1e18, "bytes per second");
    const double latency_ms = link.latency.value * 1e3;
    if (latency_ms != 0) require(pointer + "/latency_ms", latency_ms, 1e-5, 1e4, "ms");
  }
  if (cluster.memory) {
    require("/memory_bytes", static_cast<double>(cluster.memory->value), 1e3, 1e14, "bytes per device");
  }
  for (std::size_t i = 0; i < cluster.speed.size(); ++i) {
    require(fmt::format("/speed/{}", i), cluster.speed[i], kLeastSpeed, 1 / kLeastSpeed,
            "times the usual speed");
  }
}

Cluster read_cluster(const std::string& path) {
  const Json json = json::parse_file(path);
  require_kind(json, {path, ""}, "cluster");
  auto cluster = json::read<Cluster>(json, {path, ""});
  validate(cluster, path);
  require_plausible(cluster, path);
  return cluster;
}

Cluster flat_cluster(const std::string& name, int devices, const Link& link) {
  Cluster cluster;
  cluster.name = name;
  cluster.levels = {NetworkLevel{devices, link}};
  return cluster;
}

}  // namespace stagecraft
