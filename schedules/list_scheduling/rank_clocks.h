#pragma once

// What decoders keep of every rank's time: when it may next have something to do, and what it takes in all.

#include "schedules/list_scheduling/list_scheduler.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

namespace stagecraft {

/// When each rank may next have something to do. The earliest is asked for once for each action, and which rank has it
/// cannot be foreseen: a few dozen ranks are gone over without branches faster than a heap is kept.
class Wakeups {
 public:
  /// All at 0.
  explicit Wakeups(std::size_t ranks)
      : at_((ranks + kGroup - 1) / kGroup * kGroup, kNever), earliest_(at_.size() / kGroup, 0) {
    std::fill_n(at_.begin(), ranks, 0);
  }

  void at(std::size_t rank, Ticks when) {
    at_[rank] = std::min(at_[rank], when);
    earliest_[rank / kGroup] = std::min(earliest_[rank / kGroup], when);
  }
  /// The earliest, of these the first rank; nothing when none has anything to do any more.
  [[nodiscard]] std::optional<std::size_t> next() const {
    const std::size_t group = first_least(earliest_.data(), earliest_.size());
    if (earliest_.empty() || earliest_[group] == kNever) return std::nullopt;
    return group * kGroup + first_least(&at_[group * kGroup], kGroup);
  }
  /// Forgets the rank's, and returns it.
  Ticks take(std::size_t rank) {
    const Ticks when = std::exchange(at_[rank], kNever);
    const Ticks* of_group = &at_[rank / kGroup * kGroup];
    earliest_[rank / kGroup] = of_group[first_least(of_group, kGroup)];
    return when;
  }

 private:
  static constexpr std::size_t kGroup = 4;

  [[nodiscard]] static std::size_t first_least(const Ticks* times, std::size_t count) {
    std::size_t first = 0;
    Ticks least = kNever;
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t taken = 0 - static_cast<std::size_t>(times[i] < least);  // all bits or none
      first ^= (first ^ i) & taken;
      least = std::min(least, times[i]);
    }
    return first;
  }

  std::vector<Ticks> at_;        // ranks, to whole groups
  std::vector<Ticks> earliest_;  // of each group
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
