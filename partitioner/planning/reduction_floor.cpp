#include "stagecraft/partitioner/planning/reduction_floor.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace stagecraft::planning {

/// A ring of w members crosses some level that holds so many, and its slowest link sets the pace: the fastest
/// such level's. Level by level, with c_k children at level k and n_k = c_0 ... c_k members inside, bytes
/// take 2 (1 / n_(k-1) - 1 / n_k) of a level's time per byte. With times that do not fall outwards the sum is
/// least where inner levels are full; a level counts as fast as the fastest from it outwards. Rounds: 2 (c_k
/// - 1) of its latency are at least 2 log2 c_k. A link that devices share only makes it longer.
ReductionFloor::ReductionFloor(const Network& network, int devices)
    : rings_(static_cast<std::size_t>(devices) + 1), levels_(rings_.size()) {
  struct Level {
    double size;  // devices of a node
    double latency, seconds_per_byte;
  };
  std::vector<Level> levels;
  double size = 1;
  for (const NetworkLevel& level : network.levels) {
    size *= std::max(1, level.count);
    levels.push_back({size, level.link.latency.value, 1 / level.link.bytes_per_second});
  }
  for (std::size_t k = levels.size(); k-- > 1;) {
    levels[k - 1].latency = std::min(levels[k - 1].latency, levels[k].latency);
    levels[k - 1].seconds_per_byte = std::min(levels[k - 1].seconds_per_byte, levels[k].seconds_per_byte);
  }
  for (std::size_t replicas = 2; replicas < rings_.size(); ++replicas) {
    const auto w = static_cast<double>(replicas);
    const auto crossed = std::ranges::find_if(levels, [&](const Level& level) { return level.size >= w; });
    if (crossed == levels.end()) break;  // there are no so many devices
    rings_[replicas] = {2 * (w - 1) * crossed->latency, 2 * (w - 1) / w * crossed->seconds_per_byte};
    double inside = 1;
    for (const Level& level : levels) {
      const double here = std::min(level.size, w);
      levels_[replicas].latency += 2 * std::log2(here / inside) * level.latency;
      levels_[replicas].seconds_per_byte += 2 * (1 / inside - 1 / here) * level.seconds_per_byte;
      inside = here;
    }
  }
}

}  // namespace stagecraft::planning
