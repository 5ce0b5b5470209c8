#include "stagecraft/partitioner/cluster.h"

#include "stagecraft/base/json.h"

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
  if (cluster.memory && cluster.memory_reserve >= *cluster.memory) {
    throw InputError({file, "/memory_reserve_bytes"},
                     fmt::format("the reserve of {} leaves nothing of the memory of {}",
                                 cluster.memory_reserve.value, cluster.memory->value));
  }
}

Cluster read_cluster(const std::string& path) {
  auto cluster = json::read_file<Cluster>(path);
  validate(cluster, path);
  return cluster;
}

Cluster flat_cluster(const std::string& name, int devices, const Link& link) {
  Cluster cluster;
  cluster.name = name;
  cluster.levels = {NetworkLevel{devices, link}};
  return cluster;
}

}  // namespace stagecraft
