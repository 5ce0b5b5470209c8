#include "partitioner/search/step_bound.h"

#include "schedules/rules/reductions.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

namespace stagecraft::planning {
namespace {

/// Payloads take latency + bytes over the link's bandwidth.
void add_transfers(StepBound::Stage& stage, const Link& link, double times) {
  stage.latency += times * link.latency.value;
  stage.seconds_per_byte += times / link.bytes_per_second;
}

/// The fastest way over a boundary that any micro-batch has.
Link fastest_link(const PlacedCosts& costs, int stage) {
  const auto& from = costs.placement().ranks[to_size(stage - 1)];
  const auto& to = costs.placement().ranks[to_size(stage)];
  std::optional<Link> fastest;
  const std::size_t period = std::lcm(from.size(), to.size());
  for (std::size_t mb = 0; mb < period; ++mb) {
    const Rank a = from[mb % from.size()];
    const Rank b = to[mb % to.size()];
    const Link link =
        a == b ? Link{Seconds{0}, std::numeric_limits<double>::infinity()} : costs.network().between(a, b);
    if (!fastest) fastest = link;
    fastest->latency = std::min(fastest->latency, link.latency);
    fastest->bytes_per_second = std::max(fastest->bytes_per_second, link.bytes_per_second);
  }
  return *fastest;
}

double fastest(const PlacedCosts& costs, int stage) {
  double speed = 0;
  for (const Rank rank : costs.placement().ranks[to_size(stage)]) {
    speed = std::max(speed, costs.speed_of(rank));
  }
  return speed;
}

/// Of all ranks that hold the same stages, the one that has most to do.
std::map<std::vector<StageId>, Rank> busiest_ranks(const PlacedCosts& costs, int micro_batches) {
  const Placement& placement = costs.placement();
  const std::vector<std::vector<StageId>> held = placement.stages_by_rank();
  std::vector<double> load(held.size(), 0);
  for (const StageReplica& at : stage_replicas(placement, micro_batches)) {
    load[at.rank.index()] += at.count / costs.speed_of(at.rank);
  }
  std::map<std::vector<StageId>, Rank> busiest;
  for (std::size_t r = 0; r < held.size(); ++r) {
    const auto [entry, first] = busiest.try_emplace(held[r], Rank{r});
    if (!first && load[r] > load[entry->second.index()]) entry->second = Rank{r};
  }
  return busiest;
}

}  // namespace

void StepBound::Stage::add(const Stage& other, double weight) {
  forward += weight * other.forward;
  trained_forward += weight * other.trained_forward;
  again += weight * other.again;
  last_again += weight * other.last_again;
  backward_input += weight * other.backward_input;
  backward_weight += weight * other.backward_weight;
  step += weight * other.step;
  reductions += weight * other.reductions;
  latency += weight * other.latency;
  seconds_per_byte += weight * other.seconds_per_byte;
}

void StepBound::add(const StepBound& other, double weight) {
  stages.resize(other.stages.size());
  constant += weight * other.constant;
  for (std::size_t s = 0; s < stages.size(); ++s) stages[s].add(other.stages[s], weight);
}

PlacedCosts::PlacedCosts(const ChainCosts& chain, const Network& network, Placement placement,
                         const std::vector<double>& speed)
    : chain_(chain), network_(network), placement_(std::move(placement)), speed_(speed) {
  reductions_.reserve(placement_.ranks.size());
  for (int s = 0; s < stages(); ++s) {
    reductions_.emplace_back(network, members_of(placement_, Op::reduce, StageId{s}));
  }
}

double PlacedCosts::value(const StepBound& bound, const std::vector<int>& cuts,
                          const RecomputeSettings& settings) const {
  double seconds = bound.constant;
  for (int s = 0; s < stages(); ++s) {
    const int first = s == 0 ? 0 : cuts[to_size(s - 1)];
    const int last = s + 1 == stages() ? chain_.layers() : cuts[to_size(s)];
    seconds += part(bound, s, first, last, settings[to_size(s)]);
  }
  return seconds;
}

StepBound bound_of(const CriticalPath& path, const PlacedCosts& costs, const CostTable& payloads) {
  StepBound bound;
  bound.stages.resize(to_size(costs.stages()));
  for (const CriticalPath::Computing& c : path.computing) {
    StepBound::Stage& stage = bound.stages[c.stage.index()];
    const double speed = costs.speed_of(c.rank);
    stage.forward += c.forwards / speed;
    stage.again += c.recomputes / speed;
    stage.last_again += c.last_recomputes / speed;
    stage.backward_input += (c.backwards + c.input_parts) / speed;
    stage.backward_weight += (c.backwards + c.weight_parts) / speed;
    stage.step += c.steps / speed;
  }
  for (const CriticalPath::Moving& m : path.moving) {
    const Link link = costs.network().between(m.sender, m.receiver);
    if (m.payload == Payload::loss) {
      bound.constant += m.transfers * link.time(payloads.loss).value;
    } else {
      // Into the later of the two stages.
      add_transfers(bound.stages[std::max(m.from, m.to).index()], link, m.transfers);
    }
  }
  for (const CriticalPath::Meeting& m : path.meeting) {
    if (m.tie.valid()) {  // a bound of cuts that leave it where it is
      const std::vector<Rank> members = members_of(costs.placement(), m.holders);
      bound.constant += m.times * all_reduce(costs.network(), members, payloads.tied(m.tie)).time().value;
      continue;
    }
    if (m.stage.valid()) {
      bound.stages[m.stage.index()].reductions += m.times;
      continue;
    }
    const std::vector<Rank> all = members_of(costs.placement(), Op::agree_norm, {});
    bound.constant += m.times * agreement_time(costs.network(), all).value;
  }
  return bound;
}

bool splits_backwards(const std::vector<std::vector<Action>>& ranks) {
  return std::ranges::any_of(ranks, [](const auto& list) {
    return std::ranges::find(list, Op::backward_input, &Action::op) != list.end();
  });
}

const StepBound* OrderFreeBounds::busiest(std::size_t stage, StepBound Work::*bound) const {
  const StepBound* busiest = nullptr;
  for (const Work& held : work) {
    if (held.to_end.stages[stage].step == 0) continue;  // to its end only a rank's own stages step
    const StepBound& own = held.*bound;
    if (busiest == nullptr || own.stages[stage].forward > busiest->stages[stage].forward) busiest = &own;
  }
  return busiest;
}

OrderFreeBounds order_free_bounds(const PlacedCosts& costs, int micro_batches, bool split, bool goes_on,
                                  bool frozen) {
  const Placement& placement = costs.placement();
  const auto stages = to_size(costs.stages());
  StepBound none;
  none.stages.resize(stages);
  // Forward through the stages before each one, and the gradient's way back.
  std::vector<StepBound> head(stages + 1, none);
  std::vector<StepBound> tail(stages + 1, none);
  for (std::size_t s = 0; s < stages; ++s) {
    const double speed = fastest(costs, static_cast<int>(s));
    head[s + 1] = head[s];
    tail[s + 1] = tail[s];
    (frozen && goes_on ? head[s + 1].stages[s].trained_forward : head[s + 1].stages[s].forward) += 1 / speed;
    tail[s + 1].stages[s].backward_input += 1 / speed;
    if (!split) tail[s + 1].stages[s].backward_weight += 1 / speed;
    if (s + 1 < stages) {
      const Link link = fastest_link(costs, static_cast<int>(s) + 1);
      if (!frozen || !goes_on) add_transfers(head[s + 1].stages[s + 1], link, 1);
      if (!frozen) add_transfers(tail[s + 1].stages[s + 1], link, 1);
    }
  }
  // After the last gradient has come to the first stage.
  StepBound end = none;
  if (split) end.stages[0].backward_weight = 1 / fastest(costs, 0);
  end.stages[0].reductions = !frozen && placement.replicas(StageId{0}) > 1 ? 1 : 0;
  end.stages[0].step = 1 / fastest(costs, 0);

  OrderFreeBounds bounds{{}, head[stages]};
  bounds.chain.add(tail[stages], 1);
  bounds.chain.add(end, 1);
  for (const auto& [held, rank] : busiest_ranks(costs, micro_batches)) {
    const double speed = costs.speed_of(rank);
    const std::size_t first = held.front().index();
    StepBound to_tail = head[first];
    StepBound to_end = goes_on ? none : head[first];
    int total = 0;
    for (const StageId stage : held) {
      const auto& replicas = placement.ranks[stage.index()];
      const auto replica = std::ranges::find(replicas, rank) - replicas.begin();
      const int count = own_count(micro_batches, static_cast<int>(replica), placement.replicas(stage));
      total += count;
      for (StepBound* bound : {&to_tail, &to_end}) {
        bound->stages[stage.index()].forward += count / speed;
        if (count > 0 && !frozen) {
          bound->stages[stage.index()].again += (count - 1) / speed;
          bound->stages[stage.index()].last_again += 1 / speed;
        }
        bound->stages[stage.index()].backward_input += count / speed;
        if (!split || bound == &to_end) bound->stages[stage.index()].backward_weight += count / speed;
      }
      to_end.stages[stage.index()].step += 1 / speed;
    }
    if (total == 0) continue;  // more replicas than micro-batches
    if (held.size() == 1 && placement.replicas(held.front()) > 1) to_end.stages[first].reductions += 1;
    if (first > 0) {
      to_tail.add(tail[first], 1);
      to_tail.add(end, 1);
    }
    bounds.work.push_back({rank, std::move(to_tail), std::move(to_end)});
  }
  return bounds;
}

}  // namespace stagecraft::planning
