#include "schedules/costs/collectives.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace stagecraft {
namespace {

Seconds ring_time(const Network& network, const std::vector<Rank>& members, Bytes bytes) {
  const std::size_t replicas = members.size();
  const double rounds = 2.0 * static_cast<double>(replicas - 1);
  // In rank order a ring enters and leaves every node once, so on a shared link its flow is alone.
  Seconds slowest;
  for (std::size_t i = 0; i < replicas; ++i) {
    const Link link = network.between(members[i], members[(i + 1) % replicas]);
    const Seconds sent{rounds / static_cast<double>(replicas) * static_cast<double>(bytes.value) /
                       link.bytes_per_second};
    slowest = std::max(slowest, sent + link.latency * rounds);
  }
  return slowest;
}

/// How many different values `members` have when divided by `size`; they ascend.
std::size_t nodes(const std::vector<Rank>& members, std::int64_t size) {
  std::size_t count = 1;
  for (std::size_t i = 1; i < members.size(); ++i) {
    if (members[i].value / size != members[i - 1].value / size) ++count;
  }
  return count;
}

/// Whether every node of `size` ranks that has members has `each` of them.
bool even(const std::vector<Rank>& members, std::int64_t size, std::size_t each) {
  for (std::size_t i = 0; i + each <= members.size(); i += each) {
    if (members[i].value / size != members[i + each - 1].value / size) return false;
  }
  return nodes(members, size) * each == members.size();
}

std::optional<Seconds> time_by_level(const Network& network, const std::vector<Rank>& members, Bytes bytes) {
  Seconds time;
  std::int64_t size = 1;   // ranks of a node
  std::size_t inside = 1;  // members under one child of the level: each carries on with 1/inside of the bytes
  std::size_t levels = 0;
  for (const NetworkLevel& level : network.levels) {
    size *= std::max(1, level.count);
    const std::size_t each = members.size() / nodes(members, size);
    if (!even(members, size, each) || each % inside != 0) return std::nullopt;
    if (const std::size_t children = each / inside; children > 1) {
      const auto c = static_cast<double>(children);
      double share = static_cast<double>(bytes.value) / static_cast<double>(inside) / c;
      if (level.shared_by == SharedBy::child) share *= static_cast<double>(inside);
      time += (level.link.latency + Seconds{share / level.link.bytes_per_second}) * (2 * (c - 1));
      ++levels;
    }
    inside = each;
    if (inside == members.size()) break;
  }
  if (levels < 2) return std::nullopt;
  return time;
}

}  // namespace

AllReduce all_reduce(const Network& network, const std::vector<Rank>& members, Bytes bytes) {
  if (members.size() < 2) return {};
  return {ring_time(network, members, bytes), time_by_level(network, members, bytes)};
}

AllReduceTimes::AllReduceTimes(const Network& network, const std::vector<Rank>& members) {
  const std::size_t replicas = members.size();
  if (replicas < 2) return;
  const double rounds = 2.0 * static_cast<double>(replicas - 1);
  for (std::size_t i = 0; i < replicas; ++i) {
    const Link link = network.between(members[i], members[(i + 1) % replicas]);
    const Line line{link.latency.value * rounds,
                    rounds / static_cast<double>(replicas) / link.bytes_per_second};
    const bool known = std::any_of(ring_.begin(), ring_.end(), [&](const Line& other) {
      return other.latency >= line.latency && other.seconds_per_byte >= line.seconds_per_byte;
    });
    if (!known) ring_.push_back(line);
  }
  // A straight line through two points of it.
  constexpr Bytes many{std::int64_t{1} << 40U};
  const auto none = time_by_level(network, members, Bytes{0});
  if (!none) return;
  const Seconds all = *time_by_level(network, members, many);
  by_level_ = Line{none->value, (all - *none).value / static_cast<double>(many.value)};
}

double AllReduceTimes::seconds(Bytes bytes) const {
  const auto size = static_cast<double>(bytes.value);
  double ring = 0;
  for (const Line& line : ring_) ring = std::max(ring, line.at(size));
  return by_level_ ? std::min(ring, by_level_->at(size)) : ring;
}

Seconds agreement_time(const Network& network, const std::vector<Rank>& members) {
  Seconds latency;
  for (const Rank member : members) {
    // The links of a hierarchy: the outermost level that holds all members is on the way from one of them to
    // any that is far enough.
    if (member != members.front())
      latency = std::max(latency, network.between(members.front(), member).latency);
  }
  const auto rounds = static_cast<double>(std::bit_width(members.size() - 1));
  return latency * (2 * rounds);
}

}  // namespace stagecraft
