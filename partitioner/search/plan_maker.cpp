#include "partitioner/search/plan_maker.h"

#include "base/table.h"
#include "partitioner/plan/compare_costs.h"
#include "partitioner/plan/plan_pricer.h"
#include "partitioner/plan/ties.h"
#include "partitioner/search/carried_schedule.h"
#include "partitioner/search/chain_partition.h"
#include "partitioner/search/min_max.h"
#include "partitioner/search/occupancy.h"
#include "partitioner/search/step_bound.h"
#include "schedules/checker/peak_forms.h"
#include "schedules/costs/collectives.h"
#include "schedules/generators/registry.h"
#include "schedules/lowering/lowering.h"
#include "schedules/rules/reductions.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

namespace stagecraft::planning {
namespace {

/// Whether the stage before or behind is on the same ranks.
bool hands_over(const Placement& placement, StageId stage) {
  const std::size_t s = stage.index();
  return (s > 0 && placement.ranks[s - 1] == placement.ranks[s]) ||
         (s + 1 < placement.ranks.size() && placement.ranks[s + 1] == placement.ranks[s]);
}

/// What cuts of equal bottleneck may take to be told apart, in nanoseconds, about: of all numbers of stages together,
/// and of one at least; and how many they are at most.
constexpr double kTieWork = 2e7, kLeastTieWork = 4e6, kMostTies = 2000;
/// Of a simulated action, and of the stages' costs.
constexpr double kTieSimulated = 6, kTieMade = 5'000;

/// What the proof says of every stage is asked for so often at most, where nothing fits.
constexpr double kMostExact = 2e5;

/// The times of a stage that repeats forwards: they count again as part of the backward.
Measurement with_recomputes(Measurement measurement, double share) {
  for (LayerProfile& layer : measurement.layers) {
    if (!layer.frozen.value_or(false)) layer.backward_input.median += layer.forward.median * share;
  }
  return measurement;
}

}  // namespace

PlanMaker::PlanMaker(const Profile& profile, const Cluster& cluster, const PlanRequest& request)
    : profile_(profile),
      cluster_(cluster),
      request_(request),
      measurement_(profile.at(request.micro_batch_size)),
      allowed_(allowed_settings(request.recompute)),
      repeated_(with_recomputes(measurement_,
                                recomputed_share(allowed_.front(), /*replicas=*/1, request.micro_batches))),
      schedule_(find_schedule(request.schedule.name)),
      capacity_(cluster.usable_memory()),
      layers_(static_cast<int>(measurement_.layers.size())),
      cuttable_(layers_ > 1 && measurement_.layers.back().name == "loss" ? layers_ - 1 : layers_),
      facts_(program_facts(profile, measurement_, cuttable_)),
      network_(cluster.network()),
      stages_(measurement_, profile.optimizer_bytes_per_parameter_byte) {}

const StageMemoryTable& PlanMaker::stage_memory() const {
  if (!memory_) memory_.emplace(measurement_, profile_.optimizer_bytes_per_parameter_byte);
  return *memory_;
}

bool PlanMaker::splits_backwards() const {
  if (schedule_.orders_by_time || schedule_.searched) return true;
  const ScheduleProgram program = schedule_.generate(
      schedule_request(straight_layout(schedule_.placement, schedule_.virtual_stages, 2), {2}, {}));
  return planning::splits_backwards(program.ranks);
}

ScheduleRequest PlanMaker::schedule_request(const Layout& layout, std::vector<int> groups,
                                            RecomputeSettings settings) const {
  return stagecraft::schedule_request(request_.schedule, layout.placement(), std::move(groups),
                                      std::move(settings));
}

std::optional<std::string> PlanMaker::impossible_on(int devices) const {
  if (!capacity_) return std::nullopt;
  const Bytes standing = stage_memory().at(0, layers_).always(StageCounts{});
  const std::int64_t enough =
      (standing.value + capacity_->value - 1) / std::max<std::int64_t>(1, capacity_->value);
  if (enough > devices) {
    const StageCosts all = costs_of(0, layers_);
    return fmt::format(
        "weights {}, gradients {} and optimizer state {} make {}, more than the {} that {} to give, whatever "
        "the cuts, order and recomputation: it takes {} devices or more, {} or more on each, or weights or "
        "an optimizer of fewer bytes",
        format_bytes(all.weights() + all.buffers), format_bytes(all.parameters),
        format_bytes(all.optimizer_state), format_bytes(standing), format_bytes(*capacity_ * devices),
        devices == 1 ? "1 device has" : fmt::format("{} devices have", devices), enough,
        format_bytes(Bytes{(standing.value + devices - 1) / devices}));
  }
  for (int first = 0; first < cuttable_; ++first) {
    const int last = first + 1 == cuttable_ ? layers_ : first + 1;
    const Bytes needs = stage_memory().at(first, last).always(StageCounts{});
    if (needs <= *capacity_) continue;
    return fmt::format(
        "weights, gradients and optimizer state of the layer {} take {}, {} more than the {} a device has to "
        "give: no number of devices can fit, for a layer is not cut",
        measurement_.layers[to_size(first)].name, format_bytes(needs), format_bytes(needs - *capacity_),
        format_bytes(*capacity_));
  }
  return std::nullopt;
}

std::vector<StageCounts> PlanMaker::least_counts(const Layout& layout, const Schedule& schedule,
                                                 Recompute setting) const {
  const auto stages = to_size(layout.stages());
  if (schedule.orders_by_time) return std::vector<StageCounts>(stages);
  const RecomputeSettings settings(stages, setting);
  if (schedule.synchronous && has_equal_pipelines(layout.placement())) {  // one of them is enough
    const int count = (request_.micro_batches + layout.widths.front() - 1) / layout.widths.front();
    const Layout one = straight_layout(layout.kind, layout.stages_per_rank, layout.positions());
    return stage_counts(schedule.generate(schedule_request(one, {count}, settings)));
  }
  return stage_counts(schedule.generate(
      schedule_request(layout, segment_groups(schedule, layout.stages(), request_.micro_batches), settings)));
}

StageSettings PlanMaker::settings(const Layout& layout, const Schedule& schedule, bool capped,
                                  bool alone) const {
  if (!capacity_ || !capped) {
    return {layout.placement(),
            layers_,
            {allowed_.front()},
            [cuttable = cuttable_](Recompute, StageId, int first, int) { return first != cuttable; },
            alone};
  }
  std::map<Recompute, std::vector<StageCounts>> counts;
  for (const Recompute setting : allowed_) {
    counts.emplace(setting, least_counts(layout, schedule, setting));
  }
  // What a rank's neighbouring stages hand over is in the memory of one of them only.
  const auto possible = [this, counts = std::move(counts), placement = layout.placement()](
                            Recompute setting, StageId stage, int first, int last) {
    if (first == cuttable_) return false;
    const StageMemory& memory = stage_memory().at(first, last);
    const StageCounts& held = counts.at(setting)[stage.index()];
    return (hands_over(placement, stage) ? memory.always(held) : memory.peak(held)) <= *capacity_;
  };
  return {layout.placement(), layers_, allowed_, possible, alone};
}

Plan PlanMaker::plan_of(const Layout& layout, const std::vector<int>& cuts,
                        const RecomputeSettings& settings) const {
  Plan plan;
  plan.model = profile_.model;
  plan.model_fingerprint = profile_.model_fingerprint;
  plan.dtype = profile_.dtype;
  plan.threads = profile_.threads;
  plan.schedule = request_.schedule;
  plan.micro_batches = request_.micro_batches;
  plan.micro_batch_size = request_.micro_batch_size;
  CostTable& costs = plan.costs.emplace();
  costs.network = network_;
  costs.loss = measurement_.loss_report();
  const int stages = static_cast<int>(cuts.size()) + 1;
  const Placement placement = layout.placement();
  for (int stage = 0; stage < stages; ++stage) {
    const int first = stage == 0 ? 0 : cuts[to_size(stage - 1)];
    const int last = stage + 1 == stages ? layers_ : cuts[to_size(stage)];
    plan.stages.push_back({first, last, placement.ranks[to_size(stage)], settings[to_size(stage)]});
    costs.stages.push_back(costs_of(first, last));
    plan.stages.back().loads = costs.stages.back().fields > Bytes{};
  }
  plan.gradient_from = stage_of_layer(cuts, facts_.gradient_from);
  set_ties(plan, profile_.ties);
  if (!cluster_.speed.empty()) {
    costs.speed.assign(cluster_.speed.begin(), cluster_.speed.begin() + placement.world());
  }
  return plan;
}

PlanCandidate PlanMaker::priced(const Layout& layout, Plan plan) const {
  PlanPricer pricer(plan);
  return priced(layout, std::move(plan), pricer);
}

PlanCandidate PlanMaker::priced(const Layout& layout, Plan plan, PlanPricer& pricer) const {
  plan.predicted = pricer.prediction();  // no capacity yet: memory is compared apart
  plan.capacity = capacity_;
  PlanCandidate candidate{.plan = std::move(plan), .bound_by = {}, .placement = layout.name()};
  candidate.bound_by = bound_by(candidate.plan);
  return candidate;
}

std::vector<Rank> PlanMaker::over_cap(const Plan& plan) const {
  std::vector<Rank> over;
  const std::vector<Bytes>& memory = plan.predicted->memory;
  for (std::size_t r = 0; capacity_ && r < memory.size(); ++r) {
    if (memory[r] > *capacity_) over.emplace_back(r);
  }
  return over;
}

std::optional<std::vector<int>> PlanMaker::even_cuts(const Layout& layout,
                                                     const StageSettings& settings) const {
  return min_max_cuts(measurement_, network_, layout.placement(), cluster_.speed, settings,
                      request_.micro_batches);
}

PlanMaker::Balanced PlanMaker::balanced(const Layout& layout) const {
  // Where stages have their ranks to themselves, what was refused once stays refused; there are finitely
  // many, and as the bound of memory lacks little but transfers under way, this seldom goes round more than a
  // few times.
  StageSettings settings = this->settings(layout, schedule_, true);
  const bool chosen = !request_.cuts.empty();
  std::optional<std::vector<int>> refused;
  for (;;) {
    const auto cuts = chosen ? std::optional(request_.cuts) : even_cuts(layout, settings);
    if (!cuts) {
      if (request_.search.brief && !schedule_.orders_by_time) return {{}, layout.name()};
      // Where an order follows the costs, stages may have been refused for what others took.
      PlanCandidate least = this->least(layout, {});
      if (over_cap(least.plan).empty()) return {std::move(least), {}};
      const bool proved = !schedule_.orders_by_time || none_can_fit(layout);
      return {{}, misses_least(layout, least, proved), proved};
    }
    auto setting = settings.least(*cuts);
    PlanCandidate candidate;
    const bool possible = setting.has_value();
    while (setting) {
      Plan plan = plan_of(layout, *cuts, *setting);
      auto pricer = std::make_shared<PlanPricer>(plan);
      candidate = priced(layout, std::move(plan), *pricer);
      const std::vector<Rank> over = over_cap(candidate.plan);
      if (over.empty()) {
        if (chosen || schedule_.synchronous) return {std::move(candidate), {}};
        return {.candidate = best_of_ties(layout, settings, std::move(candidate), *pricer),
                .reason = {},
                .pricer = std::move(pricer)};
      }
      setting = settings.after_refusal(*cuts, *setting, over);
    }
    if (chosen) {
      candidate = least(layout, *cuts);
      if (over_cap(candidate.plan).empty()) return {std::move(candidate), {}};
      const bool proved = !possible || !(schedule_.orders_by_time && chooses_recompute());
      return {{}, misses(candidate.plan, "with the cuts asked for"), proved};
    }
    if (refused == cuts) return {{}, misses(candidate.plan, "cut evenly"), false};
    refused = cuts;
  }
}

PlanCandidate PlanMaker::best_of_ties(const Layout& layout, StageSettings& settings, PlanCandidate first,
                                      PlanPricer& pricer) const {
  const double work = request_.stages ? kTieWork : std::max(kTieWork / cluster_.devices(), kLeastTieWork);
  const auto most = static_cast<std::size_t>(std::clamp(work / price_of_cuts(pricer), 1.0, kMostTies));
  PlanCandidate best = std::move(first);
  for (const std::vector<int>& cuts : min_max_ties(measurement_, network_, layout.placement(), cluster_.speed,
                                                   settings, request_.micro_batches, most)) {
    const auto least = settings.least(cuts);
    if (!least || *least != best.plan.recompute()) continue;  // what else they repeat is another program
    if (auto better = better_with(cuts, layout, best, pricer)) best = std::move(*better);
  }
  return best;
}

std::optional<PlanCandidate> PlanMaker::better_with(const std::vector<int>& cuts, const Layout& layout,
                                                    const PlanCandidate& than, PlanPricer& pricer) const {
  Plan plan = plan_of(layout, cuts, than.plan.recompute());
  pricer.turn_to(plan);
  const Seconds step = pricer.step(*plan.costs);
  if (clearly_less(than.step().value, step.value)) return std::nullopt;
  const Bytes memory = std::ranges::max(pricer.memory(*plan.costs));
  if (capacity_ && memory > *capacity_) return std::nullopt;
  if (!clearly_less(step.value, than.step().value) && memory >= than.memory()) return std::nullopt;
  return priced(layout, std::move(plan), pricer);
}

double PlanMaker::price_of_cuts(const PlanPricer& pricer) {
  return kTieSimulated * static_cast<double>(pricer.actions()) + kTieMade;
}

std::string PlanMaker::bound_by(const Plan& plan) const {
  const CostTable& costs = *plan.costs;
  const Placement placement = plan.placement();
  double worst = 0;
  std::string what;
  const auto candidate = [&](double seconds, const auto& name) {
    if (!what.empty() && seconds <= worst) return;
    worst = seconds;
    what = name();
  };
  const std::vector<Seconds> compute = plan.compute_of_ranks();
  for (std::size_t r = 0; r < compute.size(); ++r) {
    candidate(compute[r].value, [&] {
      std::vector<int> held;
      for (const StageId stage : placement.stages_of(Rank{r})) held.push_back(stage.value);
      return fmt::format("compute of stage{} {}", held.size() == 1 ? "" : "s", fmt::join(held, ", "));
    });
  }
  for (std::size_t s = 0; s < costs.stages.size(); ++s) {
    const std::vector<Rank> members = members_of(placement, Op::reduce, StageId{s});
    candidate(
        all_reduce(costs.network, members, costs.stages[s].parameters).time().value / plan.micro_batches,
        [&] { return fmt::format("all-reduce of stage {}", s); });
    if (s == 0) continue;
    const auto& from = placement.ranks[s - 1];
    const auto& to = placement.ranks[s];
    if (from == to) continue;
    candidate(BoundaryOccupancy(costs.network, from, to).seconds(costs.stages[s].input), [&] {
      return from.size() + to.size() == 2 ? fmt::format("link {} -> {}", from.front().value, to.front().value)
                                          : fmt::format("links of stage {} -> {}", s - 1, s);
    });
  }
  return what;
}

/// Bytes instead of seconds, for the partition whose largest stage is smallest.
struct PlanMaker::MemoryCosts {
  const StageMemoryTable& table;
  std::vector<std::vector<StageCounts>> counts;  // of each setting that a stage may have
  int cuttable;
  StageTable& stages;
  std::vector<bool> handed_over{};  // stages of which only what they hold all the time is sure; empty: none
  std::vector<PeakForms> exact{};   // of each setting's program; empty: what the counts say is a bound

  [[nodiscard]] double floor(int, int, int) const { return 0; }
  [[nodiscard]] double part(int stage, int first, int last) const {
    const StageMemory& memory = table.at(first, last);
    const bool always = !handed_over.empty() && handed_over[to_size(stage)];
    Bytes least{std::numeric_limits<std::int64_t>::max()};
    for (const PeakForms& forms : exact)
      least = std::min(least, forms.peak(to_size(stage), {&stages.at(first, last)}, Bytes{}));
    if (!exact.empty()) return static_cast<double>(least.value);
    for (const std::vector<StageCounts>& setting : counts) {
      const StageCounts& held = setting[to_size(stage)];
      least = std::min(least, always ? memory.always(held) : memory.peak(held));
    }
    return static_cast<double>(least.value);
  }
  [[nodiscard]] double cut(int, int layer) const { return layer == cuttable ? kForbidden : 0; }
};

PlanMaker::MemoryCosts PlanMaker::memory_costs(const Layout& layout) const {
  MemoryCosts costs{stage_memory(), {}, cuttable_, stages_};
  // There, a stage's peak follows from its own layers.
  const bool alone = schedule_.synchronous && !schedule_.orders_by_time && layout.stages_per_rank == 1 &&
                     !layout.replicated();
  const bool exact = alone && 1.0 * layers_ * layers_ * layout.stages() <= kMostExact;
  for (const Recompute setting : allowed_) {
    costs.counts.push_back(least_counts(layout, schedule_, setting));
    if (!exact) continue;
    costs.exact.emplace_back(lower(schedule_.generate(schedule_request(
        layout, {request_.micro_batches}, RecomputeSettings(to_size(layout.stages()), setting)))));
  }
  return costs;
}

std::vector<int> PlanMaker::least_memory_cuts(const Layout& layout) const {
  const MemoryCosts costs = memory_costs(layout);
  const auto least = ChainPartitioner(layers_, layout.stages(), costs).run();
  STAGECRAFT_CHECK(least, "there are layers enough for every stage");
  return *least;
}

std::vector<std::vector<int>> PlanMaker::likely_cuts(const Layout& layout) const {
  std::vector<std::vector<int>> likely;
  const StageSettings settings = this->settings(layout, schedule_, /*capped=*/true);
  if (auto even = even_cuts(layout, settings)) likely.push_back(std::move(*even));
  if (!capacity_) return likely;
  likely.push_back(least_memory_cuts(layout));
  return likely;
}

Bytes PlanMaker::least_of_any_cuts(const Layout& layout) const {
  const Placement placement = layout.placement();
  MemoryCosts costs = memory_costs(layout);
  for (std::size_t s = 0; s < placement.ranks.size(); ++s)
    costs.handed_over.push_back(hands_over(placement, StageId{s}));
  Bytes least{(stage_memory().at(0, layers_).always(StageCounts{}).value + layout.positions() - 1) /
              layout.positions()};
  if (const auto cuts = ChainPartitioner(layers_, layout.stages(), costs).run()) {
    double most = 0;
    for (int s = 0; s < layout.stages(); ++s) {
      const int first = s == 0 ? 0 : (*cuts)[to_size(s) - 1];
      most = std::max(most, costs.part(s, first, s + 1 == layout.stages() ? layers_ : (*cuts)[to_size(s)]));
    }
    least = std::max(least, Bytes{static_cast<std::int64_t>(most)});
  }
  return least;
}

PlanCandidate PlanMaker::least(const Layout& layout, std::vector<int> cuts) const {
  if (cuts.empty() && layout.stages() > 1) cuts = least_memory_cuts(layout);
  const auto with = [&](const RecomputeSettings& settings) {
    Plan plan = plan_of(layout, cuts, settings);
    if (schedule_.searched) {
      plan.program = planned_orders(
          serial_schedule().generate(schedule_request(layout, {request_.micro_batches}, settings)));
    }
    return priced(layout, std::move(plan));
  };
  std::optional<PlanCandidate> best;
  std::vector<std::pair<Bytes, Recompute>> of_rank;
  const auto take = [&](PlanCandidate candidate) {
    if (!best || candidate.memory() < best->memory()) best = std::move(candidate);
  };
  for (const Recompute setting : allowed_) {
    PlanCandidate candidate = with(RecomputeSettings(to_size(layout.stages()), setting));
    const std::vector<Bytes>& memory = candidate.plan.predicted->memory;
    of_rank.resize(memory.size(), {Bytes{std::numeric_limits<std::int64_t>::max()}, setting});
    for (std::size_t r = 0; r < memory.size(); ++r)
      of_rank[r] = std::min(of_rank[r], {memory[r], setting},
                            [](const auto& a, const auto& b) { return a.first < b.first; });
    take(std::move(candidate));
  }
  if (chooses_recompute()) {
    RecomputeSettings each;
    for (const std::vector<Rank>& ranks : layout.placement().ranks)
      each.push_back(of_rank[ranks.front().index()].second);
    take(with(each));
  }
  return std::move(*best);
}

std::string PlanMaker::misses_least(const Layout& layout, const PlanCandidate& least, bool proved) const {
  const std::string no_less = format_bytes(least_of_any_cuts(layout));
  const char* one_by_one = schedule_.searched ? " in an order of one micro-batch at a time" : "";
  if (layout.stages() == 1 || format_bytes(least.memory()) == no_less) {
    return misses(least.plan, fmt::format("even with the cuts that need least memory{}", one_by_one));
  }
  return fmt::format("{}; {}no cuts need less than {}",
                     misses(least.plan, fmt::format("with the cuts found that need least{}", one_by_one)),
                     proved ? "no cuts fit, and " : "", no_less);
}

std::string PlanMaker::misses(const Plan& plan, const std::string& which) const {
  const std::vector<Bytes>& memory = plan.predicted->memory;
  const auto worst = to_size(std::ranges::max_element(memory) - memory.begin());
  STAGECRAFT_CHECK(memory[worst] > *capacity_, "what fits misses nothing");
  const std::vector<int> cuts = plan.cuts();
  const auto layer = [&](int i) { return measurement_.layers[to_size(i)].name; };
  std::vector<std::string> held;
  for (const StageId id : plan.placement().stages_of(Rank{worst})) {
    const StagePlan& stage = plan.stages[id.index()];
    held.push_back(
        fmt::format("stage {} ({} .. {})", id.value, layer(stage.first_layer), layer(stage.last_layer - 1)));
  }
  return fmt::format("{} stage{}: {}{} need{} {}, {} more than the {} a device has to give",
                     plan.stages.size(), plan.stages.size() == 1 ? "" : "s",
                     cuts.empty() ? "" : fmt::format("{} ({}), ", which, fmt::join(cuts, ",")),
                     fmt::join(held, " and "), held.size() == 1 ? "s" : "", format_bytes(memory[worst]),
                     format_bytes(memory[worst] - *capacity_), format_bytes(*capacity_));
}

}  // namespace stagecraft::planning
