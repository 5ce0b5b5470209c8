#include "stagecraft/schedules/list_scheduling/list_scheduler.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

namespace stagecraft {
namespace {

/// Seconds to ticks: the longest time becomes some 2^36 ticks, so that sums over any program fit, and a
/// number that all small ones divide, so that times in simple ratios keep them.
class Clock {
 public:
  explicit Clock(double longest) : longest_(longest > 0 ? longest : 1) {}
  [[nodiscard]] Ticks ticks(double seconds) const { return std::llround(seconds / longest_ * kLongest); }

 private:
  static constexpr double kLongest = 720720.0 * 65536;  // 720720: 1 to 16 divide it
  double longest_;
};

/// All times of a request in seconds, as the table has them.
class TimesInSeconds {
 public:
  TimesInSeconds(const Placement& placement, const CostTable* costs) : placement_(placement), costs_(costs) {}

  [[nodiscard]] double compute(StageId stage, std::size_t replica, Seconds StageCosts::*part) const {
    if (costs_ == nullptr) return 1;
    return (costs_->stages[stage.index()].*part).value / costs_->speed_of(rank(stage, replica));
  }
  [[nodiscard]] double transfer(Rank from, Rank to, Bytes bytes) const {
    return costs_ == nullptr || from == to ? 0 : costs_->network.between(from, to).time(bytes).value;
  }
  [[nodiscard]] Rank rank(StageId stage, std::size_t replica) const {
    return placement_.ranks[stage.index()][replica];
  }
  /// Of the boundary above `stage`, down and back up.
  [[nodiscard]] Bytes activation(StageId stage) const {
    return costs_ == nullptr ? Bytes{} : costs_->stages[stage.index() + 1].input;
  }
  [[nodiscard]] Bytes gradient(StageId stage) const {
    return costs_ == nullptr ? Bytes{} : costs_->stages[stage.index()].output;
  }

 private:
  const Placement& placement_;
  const CostTable* costs_;
};

}  // namespace

Ticks Workload::repeated_time(StageId stage, MicroBatch micro_batch) const {
  const bool repeated = recomputes(setting_of(recompute, stage), micro_batch,
                                   static_cast<int>(placement.ranks[stage.index()].size()), micro_batches);
  return repeated ? times[stage.index()][replica(stage, micro_batch)].forward : 0;
}

const Workload::Hop& Workload::forward_hop(StageId from, MicroBatch micro_batch) const {
  const StageId to{from.value + 1};
  return activation[from.index()][replica(from, micro_batch) * placement.ranks[to.index()].size() +
                                  replica(to, micro_batch)];
}

const Workload::Hop& Workload::backward_hop(StageId from, MicroBatch micro_batch) const {
  const StageId to{from.value - 1};
  return gradient[to.index()][replica(to, micro_batch) * placement.ranks[from.index()].size() +
                              replica(from, micro_batch)];
}

Workload workload_of(const WorkloadRequest& request) {
  Workload work;
  work.placement = request.placement;
  if (any_recompute(request.recompute)) work.recompute = request.recompute;
  work.micro_batches = request.micro_batches;
  const TimesInSeconds seconds(request.placement, request.costs);

  // Twice: the first time to find the longest.
  double longest = 0;
  const auto visit = [&](const auto& of_compute, const auto& of_hops) {
    for (std::size_t s = 0; s < work.placement.ranks.size(); ++s) {
      for (std::size_t r = 0; r < work.placement.ranks[s].size(); ++r) {
        const StageId stage{s};
        of_compute(stage, seconds.compute(stage, r, &StageCosts::forward),
                   seconds.compute(stage, r, &StageCosts::backward_input),
                   seconds.compute(stage, r, &StageCosts::backward_weight));
        if (s + 1 == work.placement.ranks.size()) continue;
        for (const Rank to : work.placement.ranks[s + 1]) of_hops(stage, seconds.rank(stage, r), to);
      }
    }
  };
  visit(
      [&](StageId, double f, double i, double w) {
        longest = std::max({longest, f, i, w});
      },
      [&](StageId stage, Rank from, Rank to) {
        longest = std::max({longest, seconds.transfer(from, to, seconds.activation(stage)),
                            seconds.transfer(to, from, seconds.gradient(stage))});
      });
  const Clock clock(longest);
  work.times.resize(work.placement.ranks.size());
  work.activation.resize(work.placement.ranks.size());
  work.gradient.resize(work.placement.ranks.size());
  std::map<std::pair<Rank, Rank>, int> lanes;
  const auto hop = [&](Rank from, Rank to, Bytes bytes) {
    if (from == to) return Workload::Hop{};
    const auto lane = lanes.emplace(std::pair{from, to}, static_cast<int>(lanes.size())).first;
    return Workload::Hop{clock.ticks(seconds.transfer(from, to, bytes)), lane->second};
  };
  visit(
      [&](StageId stage, double f, double i, double w) {
        work.times[stage.index()].push_back({clock.ticks(f), clock.ticks(i), clock.ticks(w)});
      },
      [&](StageId stage, Rank from, Rank to) {
        work.activation[stage.index()].push_back(hop(from, to, seconds.activation(stage)));
        work.gradient[stage.index()].push_back(hop(to, from, seconds.gradient(stage)));
      });
  work.lanes = static_cast<int>(lanes.size());
  return work;
}

MemoryLimit stage_limit(const Placement& placement, std::int64_t capacity) {
  MemoryLimit limit;
  limit.forward.assign(placement.ranks.size(), 1);
  limit.weight.assign(placement.ranks.size(), 1);
  limit.capacity.assign(static_cast<std::size_t>(placement.world()), 0);
  for (const auto& replicas : placement.ranks) {
    for (const Rank rank : replicas) ++limit.capacity[rank.index()];
  }
  for (std::int64_t& of_rank : limit.capacity) of_rank = std::max(of_rank, capacity);
  return limit;
}

}  // namespace stagecraft
