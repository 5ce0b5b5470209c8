#include "schedules/list_scheduling/list_scheduler.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

namespace stagecraft {
namespace {

/// The longest time becomes some 2^36 ticks, so that sums over any program fit, and a number that all small
/// ones divide, so that times in simple ratios keep them.
constexpr double kLongest = 720720.0 * 65536;  // 720720: 1 to 16 divide it

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
  work.goes_on = request.goes_on;
  const std::vector<std::vector<Rank>>& ranks = work.placement.ranks;
  const CostTable even = unit_costs(work.placement.stages(), work.placement.world());
  const CostTable& costs = request.costs == nullptr ? even : *request.costs;
  const auto priced = [&](Rank rank) {
    return request.costs == nullptr || request.priced_as.empty() ? rank : request.priced_as[rank.index()];
  };
  const auto transfer = [&](Rank from, Rank to, Bytes bytes) {
    return from == to ? 0 : costs.network.between(priced(from), priced(to)).time(bytes).value;
  };

  // Twice: the first time to find the longest.
  double longest = 0;
  const auto visit = [&](const auto& of_compute, const auto& of_hops) {
    for (std::size_t s = 0; s < ranks.size(); ++s) {
      const StageCosts& stage = costs.stages[s];
      for (const Rank rank : ranks[s]) {
        const double speed = costs.speed_of(priced(rank));
        of_compute(s, stage.forward.value / speed, stage.backward_input.value / speed,
                   stage.backward_weight.value / speed);
        if (s + 1 == ranks.size()) continue;
        for (const Rank to : ranks[s + 1]) of_hops(s, rank, to, costs.stages[s + 1].input, stage.output);
      }
    }
  };
  visit(
      [&](std::size_t, double f, double i, double w) {
        longest = std::max({longest, f, i, w});
      },
      [&](std::size_t, Rank from, Rank to, Bytes activation, Bytes gradient) {
        longest = std::max({longest, transfer(from, to, activation), transfer(to, from, gradient)});
      });
  if (longest <= 0) longest = 1;
  const auto ticks = [&](double seconds) -> Ticks { return std::llround(seconds / longest * kLongest); };
  work.times.resize(ranks.size());
  work.activation.resize(ranks.size());
  work.gradient.resize(ranks.size());
  std::map<std::pair<Rank, Rank>, int> lanes;
  const auto hop = [&](Rank from, Rank to, Bytes bytes) {
    if (from == to) return Workload::Hop{};
    const auto lane = lanes.emplace(std::pair{from, to}, static_cast<int>(lanes.size())).first;
    return Workload::Hop{ticks(transfer(from, to, bytes)), lane->second};
  };
  visit(
      [&](std::size_t stage, double f, double i, double w) {
        work.times[stage].push_back({ticks(f), ticks(i), ticks(w)});
      },
      [&](std::size_t stage, Rank from, Rank to, Bytes activation, Bytes gradient) {
        work.activation[stage].push_back(hop(from, to, activation));
        work.gradient[stage].push_back(hop(to, from, gradient));
      });
  work.lanes = static_cast<int>(lanes.size());
  return work;
}

Ticks least_step(const Workload& workload) {
  std::vector<Ticks> work(to_size(workload.placement.world()), 0);
  std::vector<Ticks> begin(work.size(), kNever);
  for (int i = 0; i < workload.micro_batches; ++i) {
    const MicroBatch mb{i};
    Ticks way = 0;
    for (int s = 0; s < workload.placement.stages(); ++s) {
      const StageId stage{s};
      const std::size_t rank = workload.placement.rank_of(stage, mb).index();
      begin[rank] = std::min(begin[rank], way);
      for (const Op op : {Op::forward, Op::backward_input, Op::backward_weight})
        work[rank] += workload.duration({op, stage, mb});
      way += workload.duration({Op::forward, stage, mb});
      if (s + 1 < workload.placement.stages()) way += workload.forward_hop(stage, mb).time;
    }
  }
  Ticks least = 0;
  for (std::size_t r = 0; r < work.size(); ++r) {
    if (begin[r] != kNever) least = std::max(least, (workload.goes_on ? 0 : begin[r]) + work[r]);
  }
  return least;
}

KeepLimit stage_limit(const Placement& placement, std::int64_t capacity) {
  KeepLimit limit;
  limit.forward.assign(placement.ranks.size(), 1);
  limit.weight.assign(placement.ranks.size(), 1);
  limit.capacity.assign(to_size(placement.world()), 0);
  for (const auto& replicas : placement.ranks) {
    for (const Rank rank : replicas) ++limit.capacity[rank.index()];
  }
  for (std::int64_t& of_rank : limit.capacity) of_rank = std::max(of_rank, capacity);
  return limit;
}

}  // namespace stagecraft
