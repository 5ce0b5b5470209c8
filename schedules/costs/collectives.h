#pragma once

// Closed forms of what collective operations take over a network of levels, when all members have come.

#include "schedules/costs/costs.h"

#include <optional>
#include <vector>

namespace stagecraft {

/// An all-reduce of n bytes over w members, by two algorithms; the faster one is used.
struct AllReduce {
  /// A ring through the members in the order of their ranks: 2 (w-1) rounds in which every member sends n/w
  /// bytes to the next one; the slowest link sets the pace (Patarasu & Yuan, JPDC'09).
  Seconds ring;
  /// Level by level: a reduce-scatter among the c children of every node, innermost level first, each child
  /// passing on with its share; then the all-gathers, outermost level first (BlueConnect, Cho et al.,
  /// SysML'19). A level takes 2 (c-1) rounds of its latency and of bytes / c. Absent where nodes of one level
  /// differ in how many members they hold, and where a single level connects all, which is the ring.
  std::optional<Seconds> by_level;

  [[nodiscard]] bool uses_levels() const { return by_level && *by_level < ring; }
  [[nodiscard]] Seconds time() const { return uses_levels() ? *by_level : ring; }
};

/// `members` in ascending order, each once. Where a level's link is shared by all under a child, the flows
/// that leave the child at the same time divide its bandwidth.
[[nodiscard]] AllReduce all_reduce(const Network& network, const std::vector<Rank>& members, Bytes bytes);

/// all_reduce(...).time() of the same members for any number of bytes, to rounding: made once, each is then
/// independent of how many members there are.
class AllReduceTimes {
 public:
  AllReduceTimes(const Network& network, const std::vector<Rank>& members);
  [[nodiscard]] double seconds(Bytes bytes) const;

 private:
  struct Line {
    double latency, seconds_per_byte;
    [[nodiscard]] double at(double bytes) const { return latency + seconds_per_byte * bytes; }
  };
  std::vector<Line> ring_;  // one a kind of link; the slowest counts
  std::optional<Line> by_level_;
};

/// An agreement on a few numbers: up a binary tree and down again, 2 ceil(log2 w) latencies of the slowest
/// link between members.
[[nodiscard]] Seconds agreement_time(const Network& network, const std::vector<Rank>& members);

}  // namespace stagecraft
