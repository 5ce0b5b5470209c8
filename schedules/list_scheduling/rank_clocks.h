#pragma once

// What decoders keep of every rank's time: when it may next have something to do, and what it takes in all.

#include "schedules/list_scheduling/list_scheduler.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

namespace stagecraft {

/// When each rank may next have something to do. A few dozen ranks are gone over faster than a heap is kept.
class Wakeups {
 public:
  /// All at 0.
  explicit Wakeups(std::size_t ranks) : at_(ranks, 0) {}

  void at(std::size_t rank, Ticks when) { at_[rank] = std::min(at_[rank], when); }
  /// The earliest, of these the first rank; nothing when none has anything to do any more.
  [[nodiscard]] std::optional<std::size_t> next() const {
    Ticks least = kNever;
    for (const Ticks when : at_) least = std::min(least, when);
    if (least == kNever) return std::nullopt;
    return static_cast<std::size_t>(std::ranges::find(at_, least) - at_.begin());
  }
  /// Forgets the rank's, and returns it.
  Ticks take(std::size_t rank) { return std::exchange(at_[rank], kNever); }

 private:
  std::vector<Ticks> at_;
};

/// From when on each rank's time counts (OrdersValue::step), and the most that it may.
class Spans {
 public:
  /// Keeps a reference to `workload`.
  Spans(const Workload& workload, Ticks most)
      : workload_(workload), most_(most), begins_(to_size(workload.placement.world()), kNever) {}

  /// The rank begins this; of its actions the first counts.
  void begin(std::size_t rank, const Compute& compute, Ticks begin) {
    if (begins_[rank] == kNever) begins_[rank] = workload_.span_begin(compute, begin);
  }
  /// What counts of a rank that ends at `end`; as little as it can be where it has not begun.
  [[nodiscard]] Ticks span(std::size_t rank, Ticks end) const {
    if (!workload_.goes_on) return end;
    return begins_[rank] == kNever ? 0 : end - begins_[rank];
  }
  [[nodiscard]] bool exceeds(std::size_t rank, Ticks end) const { return span(rank, end) > most_; }
  /// [rank] ends: of all that have begun.
  [[nodiscard]] OrdersValue value(const std::vector<Ticks>& ends) const {
    Ticks makespan = 0;
    Ticks longest = 0;
    for (std::size_t r = 0; r < ends.size(); ++r) {
      if (begins_[r] == kNever) continue;
      makespan = std::max(makespan, ends[r]);
      longest = std::max(longest, ends[r] - begins_[r]);
    }
    return workload_.value(makespan, longest);
  }

 private:
  const Workload& workload_;
  Ticks most_;
  std::vector<Ticks> begins_;  // [rank]
};

}  // namespace stagecraft
