#pragma once

// The least an all-reduce can take, wherever its members lie: what collectives.h says of the best of all sets
// of so many devices, or less. Never falls as members are added.

#include "stagecraft/schedules/costs/costs.h"

#include <vector>

namespace stagecraft::planning {

class ReductionFloor {
 public:
  ReductionFloor(const Network& network, int devices);
  [[nodiscard]] double seconds(int replicas, Bytes bytes) const {
    const Floor& ring = rings_[static_cast<std::size_t>(replicas)];
    const Floor& levels = levels_[static_cast<std::size_t>(replicas)];
    const auto size = static_cast<double>(bytes.value);
    const double by_ring = ring.latency + ring.seconds_per_byte * size;
    const double by_level = levels.latency + levels.seconds_per_byte * size;
    return by_ring < by_level ? by_ring : by_level;
  }

 private:
  struct Floor {
    double latency = 0, seconds_per_byte = 0;
  };
  std::vector<Floor> rings_, levels_;  // by number of replicas
};

}  // namespace stagecraft::planning
