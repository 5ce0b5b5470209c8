#include "partitioner/search/occupancy.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

namespace stagecraft::planning {

BoundaryOccupancy::BoundaryOccupancy(const Network& network, const std::vector<Rank>& from,
                                     const std::vector<Rank>& to) {
  // What carries: a pair of ranks, or a shared link out or in (level, child, direction).
  using Carrier = std::tuple<std::int64_t, std::int64_t, std::int64_t>;
  std::map<Carrier, Part> carried;
  const std::size_t period = std::lcm(from.size(), to.size());
  for (std::size_t mb = 0; mb < period; ++mb) {
    const Rank a = from[mb % from.size()];
    const Rank b = to[mb % to.size()];
    if (a == b) continue;
    const Network::Path path = network.path(a, b);
    const double share = 1.0 / static_cast<double>(period);
    const auto add = [&](const Carrier& carrier) {
      Part& part = carried[carrier];
      part.latency += share * path.link.latency.value;
      part.seconds_per_byte += share / path.link.bytes_per_second;
    };
    if (!path.shared) {
      add({-1, a.value, b.value});
      continue;
    }
    const auto level = static_cast<std::int64_t>(path.level);
    add({level, path.from, 0});
    add({level, path.to, 1});
  }
  for (const auto& [carrier, part] : carried) {
    const bool known = std::any_of(parts_.begin(), parts_.end(), [&, p = part](const Part& other) {
      return other.latency >= p.latency && other.seconds_per_byte >= p.seconds_per_byte;
    });
    if (!known) parts_.push_back(part);
  }
}

double BoundaryOccupancy::seconds(Bytes bytes) const {
  double most = 0;
  for (const Part& part : parts_) {
    most = std::max(most, part.latency + part.seconds_per_byte * static_cast<double>(bytes.value));
  }
  return most;
}

double stage_speed(const std::vector<Rank>& replicas, const std::vector<double>& speed) {
  double slowest = 1;
  for (std::size_t i = 0; i < replicas.size() && !speed.empty(); ++i) {
    const double own = speed[replicas[i].index()];
    slowest = i == 0 ? own : std::min(slowest, own);
  }
  return slowest * static_cast<double>(replicas.size());
}

}  // namespace stagecraft::planning
