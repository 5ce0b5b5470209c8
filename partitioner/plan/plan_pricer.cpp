#include "partitioner/plan/plan_pricer.h"

#include "schedules/checker/checker.h"
#include "schedules/costs/collectives.h"
#include "schedules/costs/traffic.h"
#include "schedules/generators/registry.h"
#include "schedules/lowering/lowering.h"
#include "schedules/rules/reductions.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>

namespace stagecraft {
namespace {

/// Adds up what a chain meets more than once.
class Parts {
 public:
  void add(ChainPart::Kind kind, std::optional<StageId> stage, std::optional<int> level, Seconds seconds) {
    if (seconds <= Seconds{}) return;
    ChainPart& part = parts_[{static_cast<int>(kind), stage ? stage->value : -1, level.value_or(-1)}];
    part = {kind, stage, level, part.seconds + seconds};
  }
  /// What another chain has as well.
  void leave_out(const Parts& others) {
    for (const auto& [what, part] : others.parts_) {
      const auto own = parts_.find(what);
      if (own == parts_.end()) continue;
      own->second.seconds -= part.seconds;
      if (own->second.seconds <= Seconds{}) parts_.erase(own);
    }
  }
  [[nodiscard]] std::vector<ChainPart> largest_first(double share) const {
    std::vector<ChainPart> parts;
    for (const auto& [what, part] : parts_) {
      parts.push_back(part);
      parts.back().seconds = part.seconds * share;
    }
    std::ranges::stable_sort(parts, std::greater{}, &ChainPart::seconds);
    return parts;
  }

 private:
  std::map<std::array<int, 3>, ChainPart> parts_;  // by kind, stage and level; -1 where there is none
};

void add_computing(const CriticalPath::Computing& c, const CostTable& costs, Parts& parts) {
  const StageCosts& stage = costs.stages[c.stage.index()];
  const double speed = costs.speed_of(c.rank);
  parts.add(ChainPart::Kind::compute, c.stage, {},
            (stage.forward * c.all_forwards() + stage.backward_input * (c.backwards + c.input_parts) +
             stage.backward_weight * (c.backwards + c.weight_parts)) /
                speed);
  parts.add(ChainPart::Kind::optimizer, c.stage, {}, stage.step * c.steps / speed);
}

void add_moving(const CriticalPath::Moving& m, const CostTable& costs, Parts& parts) {
  const Bytes bytes = payload_bytes(costs, m.payload, m.from, m.to);
  const Network::Path path = costs.network.path(m.sender, m.receiver);
  parts.add(ChainPart::Kind::link, std::max(m.from, m.to), static_cast<int>(path.level),
            path.link.time(bytes) * m.transfers);
}

void add_meeting(const CriticalPath::Meeting& m, const CostTable& costs, const Placement& placement,
                 Parts& parts) {
  if (m.tie.valid()) {
    parts.add(
        ChainPart::Kind::tie, m.holders.front(), {},
        all_reduce(costs.network, members_of(placement, m.holders), costs.tied(m.tie)).time() * m.times);
    return;
  }
  const bool reduces = m.stage.valid();
  const std::vector<Rank> members = members_of(placement, reduces ? Op::reduce : Op::agree_norm, m.stage);
  if (reduces) {
    const Bytes bytes = costs.stages[m.stage.index()].parameters;
    parts.add(ChainPart::Kind::reduction, m.stage, {},
              all_reduce(costs.network, members, bytes).time() * m.times);
  } else {
    parts.add(ChainPart::Kind::agreement, {}, {}, agreement_time(costs.network, members) * m.times);
  }
}

std::vector<Bytes> peaks(const std::vector<MemoryProof>& memory) {
  std::vector<Bytes> peaks;
  for (const MemoryProof& rank : memory) peaks.push_back(rank.peak);
  return peaks;
}

Seconds makespan(const Simulation& run) { return run.makespan; }

Parts chain_of(const LoweredProgram& program, Simulator& simulator, const CostTable& costs) {
  const CriticalPath path = simulator.critical_path(costs);
  Parts parts;
  for (const CriticalPath::Computing& c : path.computing) add_computing(c, costs, parts);
  for (const CriticalPath::Moving& m : path.moving) add_moving(m, costs, parts);
  for (const CriticalPath::Meeting& m : path.meeting) add_meeting(m, costs, program.placement, parts);
  const Seconds makespan = simulator.run(costs).makespan;
  const Seconds queued = makespan - path.length;
  // Less is rounding.
  if (queued > makespan * 1e-9) parts.add(ChainPart::Kind::link_queue, {}, {}, queued);
  return parts;
}

LostTime mean_lost(Simulator& simulator, const CostTable& costs, double share) {
  const std::vector<LostTime> ranks = simulator.lost_time(costs);
  LostTime mean;
  for (const LostTime& rank : ranks) {
    for (const auto part : {&LostTime::imbalance, &LostTime::dependency, &LostTime::exposed_transfer,
                            &LostTime::blocked_send, &LostTime::memory, &LostTime::barrier}) {
      mean.*part += rank.*part * (share / static_cast<double>(ranks.size()));
    }
  }
  return mean;
}

}  // namespace

PlanPricer::PlanPricer(const Plan& plan)
    : plan_(plan), made_anew_(find_schedule(plan.schedule.name).orders_by_time && !plan.program) {
  STAGECRAFT_CHECK(plan.costs, "a plan without costs cannot be priced");
  make();
}

void PlanPricer::make() {
  programs_.clear();
  several_.reset();
  const Schedule& schedule = find_schedule(plan_.schedule.name);
  std::vector<int> groups =
      segment_groups(schedule, static_cast<int>(plan_.stages.size()), plan_.micro_batches);
  programs_.emplace_back(lower(plan_program(plan_, groups)));
  if (schedule.synchronous) return;
  groups.insert(groups.end(), groups.begin(), groups.end());
  programs_.emplace_back(lower(plan_program(plan_, groups)));
}

void PlanPricer::turn_to(const Plan& plan) {
  const bool same = !made_anew_ && !plan.program && !plan_.program && same_program(plan, plan_);
  plan_ = plan;
  if (!same) make();
}

void PlanPricer::take(const CostTable& costs) {
  if (!made_anew_) return;
  plan_.costs = costs;
  make();
}

PlanPricer::Runs PlanPricer::run(const CostTable& costs) {
  Runs runs;
  for (PreparedProgram& priced : programs_) runs.push_back(&priced.simulator.run(costs));
  return runs;
}

/// Without a flush, steps overlap: the time of one is what each further one adds once the pipeline is full.
template <class Figure>
Seconds PlanPricer::of_step(const Runs& runs, const Figure& figure) const {
  const Seconds whole = figure(*runs.back());
  if (runs.size() == 1) return whole;
  return (whole - figure(*runs.front())) / static_cast<double>(programs_.front().program.groups());
}

Prediction PlanPricer::prediction() {
  const CostTable& costs = *plan_.costs;
  Prediction prediction;
  prediction.memory = peaks(prove(programs_.back().program, &costs, plan_.capacity).memory);
  Runs free_links;
  for (PreparedProgram& priced : programs_) {
    free_links.push_back(&priced.simulator.run_free_links(costs));
  }
  prediction.step_ideal =
      synchronous() ? programs_.front().simulator.cycle_free_links(costs) : of_step(free_links, makespan);
  const Runs runs = run(costs);
  const std::size_t ranks = prediction.memory.size();
  Seconds busy;
  for (std::size_t r = 0; r < ranks; ++r) {
    busy += of_step(runs, [r](const Simulation& run) { return run.ranks[r].busy(); });
  }
  prediction.step = synchronous() ? programs_.front().simulator.cycle(costs) : of_step(runs, makespan);
  if (prediction.step > Seconds{}) {
    prediction.bubble = std::max(0.0, 1 - busy / prediction.step / static_cast<double>(ranks));
  }
  prediction.bottleneck = std::ranges::max(plan_.compute_of_ranks());
  return prediction;
}

Seconds PlanPricer::step(const CostTable& costs) {
  take(costs);
  return synchronous() ? programs_.front().simulator.cycle(costs) : of_step(run(costs), makespan);
}

PlanPricer::Several* PlanPricer::overlapping(const CostTable& costs) {
  if (!synchronous()) return nullptr;
  PreparedProgram& step = programs_.front();
  const Seconds alone = step.simulator.run(costs).makespan;
  const Seconds cycle = step.simulator.cycle(costs);
  const auto near = [](Seconds a, Seconds b) { return std::abs((a - b).value) <= 1e-9 * b.value; };
  // It may also be longer than a step alone: what a step leaves behind can hold up the next.
  if (near(cycle, alone)) return nullptr;
  // Steps may take a while until they are as all that follow, and then be so in turns of two or three.
  constexpr int kFew = 3, kMost = 12;
  if (!several_) several_ = std::make_unique<Several>(step.program, kFew);
  const auto settled = [&] {
    const Seconds first = several_->few.simulator.run(costs).makespan;
    const Seconds later = several_->more.simulator.run(costs).makespan - first;
    return near(later / several_->steps, cycle);
  };
  while (several_->steps < kMost && !settled()) {
    several_ = std::make_unique<Several>(step.program, 2 * several_->steps);
  }
  return several_.get();
}

std::vector<Bytes> PlanPricer::memory(const CostTable& costs) {
  take(costs);
  return peaks(memory_of(programs_.back().program, costs));
}

std::vector<ChainPart> PlanPricer::chain(const CostTable& costs) {
  take(costs);
  if (Several* several = overlapping(costs)) {
    Parts parts = chain_of(several->more.program, several->more.simulator, costs);
    parts.leave_out(chain_of(several->few.program, several->few.simulator, costs));
    return parts.largest_first(1.0 / several->steps);
  }
  PreparedProgram& priced = programs_.back();
  return chain_of(priced.program, priced.simulator, costs).largest_first(1 / groups());
}

LostTime PlanPricer::lost(const CostTable& costs) {
  take(costs);
  if (Several* several = overlapping(costs)) {
    const double share = 1.0 / several->steps;
    LostTime steady = mean_lost(several->more.simulator, costs, share);
    const LostTime first = mean_lost(several->few.simulator, costs, share);
    for (const auto part : {&LostTime::imbalance, &LostTime::dependency, &LostTime::exposed_transfer,
                            &LostTime::blocked_send, &LostTime::memory, &LostTime::barrier}) {
      steady.*part = std::max(Seconds{}, steady.*part - first.*part);
    }
    return steady;
  }
  return mean_lost(programs_.back().simulator, costs, 1 / groups());
}

Seconds PlanPricer::busy(const CostTable& costs) {
  take(costs);
  const Simulation& simulation = programs_.back().simulator.run(costs);
  Seconds busy;
  for (const RankTimes& rank : simulation.ranks) busy += rank.busy();
  return busy / groups() / static_cast<double>(simulation.ranks.size());
}

std::size_t PlanPricer::actions() const {
  std::size_t actions = 0;
  for (const PreparedProgram& priced : programs_) actions += priced.simulator.actions();
  return actions;
}

std::optional<Seconds> agreement_cost(const Plan& plan) {
  if (!plan.schedule.agree_norm) return std::nullopt;
  Plan without = plan;
  without.schedule.agree_norm = false;
  return std::max(Seconds{}, PlanPricer(plan).step(*plan.costs) - PlanPricer(without).step(*plan.costs));
}

Prediction predict(const Plan& plan) { return PlanPricer(plan).prediction(); }

}  // namespace stagecraft
