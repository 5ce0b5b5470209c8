#include "partitioner/planner.h"

#include "partitioner/chain_partition.h"
#include "partitioner/stage_memory.h"
#include "schedules/base/table.h"
#include "schedules/checker.h"
#include "schedules/synthesis/synthesis.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <memory>
#include <set>
#include <tuple>

namespace stagecraft {

namespace {

/// Bytes instead of seconds, for the partition whose largest stage is smallest.
struct MemoryCosts {
  const StageMemoryTable& table;
  const std::vector<Residency>& residency;
  int cuttable;

  [[nodiscard]] double floor(int, int, int) const { return 0; }
  [[nodiscard]] double part(int stage, int first, int last) const {
    return static_cast<double>(table.at(first, last).peak(residency[static_cast<std::size_t>(stage)]).value);
  }
  [[nodiscard]] double cut(int, int layer) const { return layer == cuttable ? kForbidden : 0; }
};

/// The times of a stage that repeats forwards: they count again as part of the backward.
Measurement with_recomputes(Measurement measurement, double share) {
  for (LayerProfile& layer : measurement.layers) layer.backward_input.median += layer.forward.median * share;
  return measurement;
}

class Planner {
 public:
  Planner(const Profile& profile, const Cluster& cluster, const PlanRequest& request)
      : profile_(profile),
        cluster_(cluster),
        request_(request),
        measurement_(profile.at(request.micro_batch_size)),
        repeated_(with_recomputes(measurement_,
                                  recomputed_share(request.recompute, /*width=*/1, request.micro_batches))),
        schedule_(find_schedule(request.schedule.name)),
        capacity_(cluster.usable_memory()),
        kind_(schedule_.placement),
        stages_a_rank_(request.virtual_stages.value_or(schedule_.virtual_stages)),
        layers_(static_cast<int>(measurement_.layers.size())),
        // The loss is no layer of the model: it stays with the layer before it.
        cuttable_(layers_ > 1 && measurement_.layers.back().name == "loss" ? layers_ - 1 : layers_) {
    if (capacity_) memory_.emplace(measurement_, profile.optimizer_bytes_per_parameter_byte);
  }

  PlanResult run();

 private:
  /// Stages of a placement kind, so many a rank.
  struct Shape {
    PlacementKind kind;
    int stages_a_rank;
  };
  using Clock = std::chrono::steady_clock;

  /// The schedule's own shape, or all that a search goes over.
  [[nodiscard]] std::vector<Shape> shapes() const;
  void take(const Shape& shape);
  [[nodiscard]] Placement place(int ranks) const;
  [[nodiscard]] std::vector<int> stage_counts() const;
  [[nodiscard]] std::string placement_name() const;
  SearchResult search(Plan& plan);
  void tell_progress() const;
  void check_request() const;
  void check_stage_count(int stages) const;
  void check_cuts() const;
  /// The best plan of that many stages; nothing, and a line in infeasible_, when none fits.
  std::optional<PlanCandidate> with_stages(int stages);
  [[nodiscard]] ScheduleRequest schedule_request(int ranks, std::vector<int> groups) const;
  [[nodiscard]] std::vector<Residency> least_residencies(const Placement& placement) const;
  [[nodiscard]] Plan plan_of(const std::vector<int>& cuts) const;
  [[nodiscard]] std::string bound_by(const Plan& plan) const;
  PlanCandidate priced(const std::vector<int>& cuts);
  [[nodiscard]] std::string least_memory(int stages, const std::vector<Residency>& residency);
  [[nodiscard]] std::string misses(const Plan& plan, const std::string& which) const;

  const Profile& profile_;
  const Cluster& cluster_;
  const PlanRequest& request_;
  const Measurement& measurement_;
  Measurement repeated_;  ///< what stages are cut by
  const Schedule& schedule_;
  std::optional<Bytes> capacity_;
  PlacementKind kind_;  ///< the shape under way, with stages_a_rank_
  int stages_a_rank_;
  int layers_;
  int cuttable_;
  std::optional<StageMemoryTable> memory_;
  std::vector<std::string> infeasible_;
  SearchProgress progress_{.best = Seconds{std::numeric_limits<double>::infinity()}};
  Clock::time_point begin_ = Clock::now();
};

/// More stages a rank than this only add transfers.
constexpr int kMostSearchedStages = 4;

std::vector<Planner::Shape> Planner::shapes() const {
  if (!schedule_.searched) return {{schedule_.placement, stages_a_rank_}};
  std::vector<Shape> all;
  const auto wanted = [&](int v) { return !request_.virtual_stages || *request_.virtual_stages == v; };
  const int most = std::max(kMostSearchedStages, request_.virtual_stages.value_or(1));
  if (wanted(1)) all.push_back({PlacementKind::straight, 1});
  if (wanted(2)) all.push_back({PlacementKind::v, 2});
  for (int v = 2; v <= most; ++v) {
    if (wanted(v)) all.push_back({PlacementKind::loop, v});
  }
  return all;
}

void Planner::take(const Shape& shape) {
  kind_ = shape.kind;
  stages_a_rank_ = shape.stages_a_rank;
}

Placement Planner::place(int ranks) const {
  if (!schedule_.searched) return schedule_.place(ranks, stages_a_rank_);
  switch (kind_) {
    case PlacementKind::straight:
      return Placement::straight(ranks);
    case PlacementKind::loop:
      return Placement::looped(ranks, stages_a_rank_);
    case PlacementKind::v:
      break;
  }
  return Placement::zigzag(ranks, stages_a_rank_);
}

std::string Planner::placement_name() const {
  if (kind_ == PlacementKind::straight) return enum_name(kind_);
  return fmt::format("{} of {}", enum_name(kind_), stages_a_rank_);
}

void Planner::check_request() const {
  if (request_.micro_batches < 1 || request_.micro_batches > kMostMicroBatches) {
    throw InputError(
        fmt::format("a step has 1 to {} micro-batches, not {}", kMostMicroBatches, request_.micro_batches));
  }
  schedule_.check(schedule_request(1, {request_.micro_batches}));
  if (request_.stages) check_stage_count(*request_.stages);
  if (!request_.cuts.empty()) {
    const int stages = static_cast<int>(request_.cuts.size()) + 1;
    if (request_.stages && *request_.stages != stages) {
      throw InputError(fmt::format("the cuts {} make {} stages, but {} are asked for",
                                   fmt::join(request_.cuts, ","), stages, *request_.stages));
    }
    check_cuts();
    check_stage_count(stages);
  }
}

void Planner::check_stage_count(int stages) const {
  if (stages < 1) throw InputError(fmt::format("{} stages: expected at least 1", stages));
  if (stages > cuttable_) {
    throw InputError(
        fmt::format("{} stages, but the model has {} layers; a stage needs at least one", stages, cuttable_));
  }
  if (stages % stages_a_rank_ != 0) {
    throw InputError(fmt::format("{} stages are no multiple of the {} a rank that {} is to have", stages,
                                 stages_a_rank_, schedule_.name));
  }
  if (stages / stages_a_rank_ > cluster_.devices()) {
    throw InputError(fmt::format("{} stages, but the cluster{} has {} devices; {}", stages,
                                 cluster_.name.empty() ? "" : " " + cluster_.name, cluster_.devices(),
                                 stages_a_rank_ == 1
                                     ? "a stage needs one of its own"
                                     : fmt::format("{} share one with {}", stages_a_rank_, schedule_.name)));
  }
}

void Planner::check_cuts() const {
  int before = 0;
  for (const int cut : request_.cuts) {
    if (cut <= before || cut >= cuttable_) {
      throw InputError(fmt::format(
          "cuts {}: {} is out of place; cuts are the first layers of stages 1, 2, ..., ascending, "
          "between 1 and {} (the model's layers are 0 to {})",
          fmt::join(request_.cuts, ","), cut, cuttable_ - 1, cuttable_ - 1));
    }
    before = cut;
  }
}

std::vector<int> Planner::stage_counts() const {
  if (!request_.cuts.empty()) return {static_cast<int>(request_.cuts.size()) + 1};
  if (request_.stages) return {*request_.stages};
  std::vector<int> counts;
  for (int ranks = 1; ranks <= std::min(cluster_.devices(), cuttable_ / stages_a_rank_); ++ranks) {
    counts.push_back(ranks * stages_a_rank_);
  }
  if (counts.empty()) check_stage_count(stages_a_rank_);
  return counts;
}

PlanResult Planner::run() {
  // What there is to try, and why the rest is not: if nothing is left, that is the answer.
  std::vector<std::pair<Shape, int>> attempts;
  std::optional<InputError> impossible;
  for (const Shape& shape : shapes()) {
    take(shape);
    try {
      check_request();
      for (const int stages : stage_counts()) {
        // Loops and Vs over one rank are nothing but more stages there.
        if (schedule_.searched && stages == shape.stages_a_rank && stages > 1) continue;
        attempts.emplace_back(shape, stages);
      }
    } catch (const InputError& error) {
      if (!impossible) impossible = error;
    }
  }
  if (attempts.empty() && impossible) throw *impossible;
  progress_.placements = attempts.size();
  std::vector<PlanCandidate> candidates;
  for (const auto& [shape, stages] : attempts) {
    take(shape);
    try {
      if (auto candidate = with_stages(stages)) {
        progress_.best = std::min(progress_.best, candidate->plan.predicted->step);
        candidates.push_back(std::move(*candidate));
      }
    } catch (const InputError& error) {  // not so many, says the schedule
      if (attempts.size() == 1) throw;
      infeasible_.push_back(fmt::format("{} stages: {}", stages, error.what()));
    }
    ++progress_.tried;
  }
  if (candidates.empty()) {
    throw RefusedError(fmt::format("no plan fits:\n  {}", fmt::join(infeasible_, "\n  ")));
  }
  // Stable: of equal steps the one with fewer stages stays first.
  std::stable_sort(candidates.begin(), candidates.end(), [](const PlanCandidate& a, const PlanCandidate& b) {
    return a.plan.predicted->step < b.plan.predicted->step;
  });
  PlanResult result{std::move(candidates.front()), {}, std::move(infeasible_)};
  candidates.erase(candidates.begin());
  result.others = std::move(candidates);
  return result;
}

std::optional<PlanCandidate> Planner::with_stages(int stages) {
  const Placement placement = place(stages / stages_a_rank_);
  const std::vector<Residency> residency = least_residencies(placement);
  // Stages that the search's memory bound let through and the proof did not. A stage's memory depends on no
  // other stage's layers, so what was refused once stays refused; there are finitely many, and as the bound
  // lacks little but transfers under way, this seldom goes round more than a few times.
  std::set<std::tuple<int, int, int>> refused;
  const auto fits = [&](StageId stage, int first, int last) {
    if (first == cuttable_) return false;
    if (!capacity_) return true;
    return memory_->at(first, last).peak(residency[stage.index()]) <= *capacity_ &&
           !refused.contains({stage.value, first, last});
  };
  for (;;) {
    const bool chosen = !request_.cuts.empty();
    const auto cuts = chosen ? std::optional(request_.cuts)
                             : min_max_cuts(repeated_, cluster_.network(), placement, cluster_.speed, fits);
    if (!cuts) {
      infeasible_.push_back(least_memory(stages, residency));
      return std::nullopt;
    }
    PlanCandidate candidate = priced(*cuts);
    const std::vector<Bytes>& memory = candidate.plan.predicted->memory;
    bool within = true;
    for (std::size_t r = 0; capacity_ && r < memory.size(); ++r) {
      if (memory[r] <= *capacity_) continue;
      within = false;
      if (stages_a_rank_ > 1 || schedule_.searched) continue;
      const StagePlan& stage = candidate.plan.stages[r];
      refused.insert({static_cast<int>(r), stage.first_layer, stage.last_layer});
    }
    if (within) return candidate;
    if (chosen || stages_a_rank_ > 1 || schedule_.searched) {
      const std::string cut = chosen ? "with the cuts asked for" : "cut evenly";
      infeasible_.push_back(
          misses(candidate.plan, schedule_.searched ? fmt::format("{}, {}", placement_name(), cut) : cut));
      return std::nullopt;
    }
  }
}

ScheduleRequest Planner::schedule_request(int ranks, std::vector<int> groups) const {
  ScheduleRequest request;
  request.placement = place(ranks);
  request.group_sizes = std::move(groups);
  request.vertical_sync = request_.schedule.vertical_sync;
  request.clip = request_.schedule.agree_norm;
  request.warmup_extra = request_.schedule.warmup_extra;
  request.recompute.assign(request.placement.ranks.size(), request_.recompute);
  return request;
}

/// What every stage holds at least. An order that follows the costs is not known before the cuts are.
std::vector<Residency> Planner::least_residencies(const Placement& placement) const {
  if (schedule_.orders_by_time) return std::vector<Residency>(placement.ranks.size());
  return residencies(schedule_.generate(schedule_request(
      placement.world(), segment_groups(schedule_, placement.stages(), request_.micro_batches))));
}

PlanCandidate Planner::priced(const std::vector<int>& cuts) {
  PlanCandidate candidate{.plan = plan_of(cuts), .bound_by = {}, .placement = placement_name()};
  if (schedule_.searched) candidate.search = search(candidate.plan);
  candidate.plan.predicted = predict(candidate.plan);  // no capacity yet: memory is compared here
  candidate.plan.capacity = capacity_;
  candidate.bound_by = bound_by(candidate.plan);
  return candidate;
}

/// The plan gets the order that is found. The time there is left goes in equal parts to the placements left.
SearchResult Planner::search(Plan& plan) {
  tell_progress();
  const SearchBudget& budget = request_.search;
  SynthesisRequest request{.placement = plan.placement(),
                           .micro_batches = plan.micro_batches,
                           .clip = plan.schedule.agree_norm,
                           .costs = &*plan.costs,
                           .capacity = capacity_,
                           .recompute = plan.recompute(),
                           .budget = {.work = budget.work, .to_beat = progress_.best}};
  const auto spent = [this] { return Seconds{std::chrono::duration<double>(Clock::now() - begin_).count()}; };
  if (budget.time_limit) {
    const double left = std::max(0.0, (*budget.time_limit - spent()).value);
    const auto placements = static_cast<double>(progress_.placements - progress_.tried);
    const Seconds until = spent() + Seconds{left / std::max(1.0, placements)};
    request.budget.work = std::numeric_limits<std::int64_t>::max() / 4;
    request.budget.go_on = [this, spent, until](Seconds) {
      tell_progress();
      return spent() < until;
    };
  } else {
    request.budget.go_on = [this](Seconds) {
      tell_progress();
      return true;
    };
  }
  const Synthesis found = synthesize(request);
  plan.program = planned_orders(found.program);
  return {.from = found.from, .orders = found.orders, .gap = found.gap(), .optimal = found.optimal()};
}

void Planner::tell_progress() const {
  if (request_.search.progress) request_.search.progress(progress_);
}

Plan Planner::plan_of(const std::vector<int>& cuts) const {
  Plan plan;
  plan.model = profile_.model;
  plan.model_fingerprint = profile_.model_fingerprint;
  plan.dtype = profile_.dtype;
  plan.threads = profile_.threads;
  plan.schedule = request_.schedule;
  plan.micro_batches = request_.micro_batches;
  plan.micro_batch_size = request_.micro_batch_size;
  CostTable& costs = plan.costs.emplace();
  costs.network = cluster_.network();
  const int stages = static_cast<int>(cuts.size()) + 1;
  const Placement placement = place(stages / stages_a_rank_);
  for (int stage = 0; stage < stages; ++stage) {
    const int first = stage == 0 ? 0 : cuts[static_cast<std::size_t>(stage - 1)];
    const int last = stage + 1 == stages ? layers_ : cuts[static_cast<std::size_t>(stage)];
    plan.stages.push_back(
        {first, last, placement.ranks[static_cast<std::size_t>(stage)], request_.recompute});
    costs.stages.push_back(
        stage_costs(measurement_, first, last, profile_.optimizer_bytes_per_parameter_byte));
  }
  if (!cluster_.speed.empty()) {
    costs.speed.assign(cluster_.speed.begin(), cluster_.speed.begin() + placement.world());
  }
  return plan;
}

std::string Planner::bound_by(const Plan& plan) const {
  const CostTable& costs = *plan.costs;
  const Placement placement = plan.placement();
  Seconds worst;
  std::string what;
  const auto candidate = [&](Seconds time, const std::string& name) {
    if (!what.empty() && time <= worst) return;
    worst = time;
    what = name;
  };
  for (int r = 0; r < placement.world(); ++r) {
    Seconds compute;
    std::vector<int> held;
    for (const StageId stage : placement.stages_of(Rank{r})) {
      compute += plan.compute_time(stage) / costs.speed_of(Rank{r});
      held.push_back(stage.value);
    }
    candidate(compute,
              fmt::format("compute of stage{} {}", held.size() == 1 ? "" : "s", fmt::join(held, ", ")));
  }
  for (std::size_t s = 1; s < costs.stages.size(); ++s) {
    const Rank from = placement.ranks[s - 1].front();
    const Rank to = placement.ranks[s].front();
    if (from == to) continue;
    candidate(costs.network.between(from, to).time(costs.stages[s].input),
              fmt::format("link {} -> {}", from.value, to.value));
  }
  return what;
}

/// Why no partition into that many stages fits: the one whose largest stage is smallest still misses.
std::string Planner::least_memory(int stages, const std::vector<Residency>& residency) {
  STAGECRAFT_CHECK(memory_, "without a cap every partition fits");
  const MemoryCosts costs{*memory_, residency, cuttable_};
  const auto least = ChainPartitioner(layers_, stages, costs).run();
  STAGECRAFT_CHECK(least, "there are layers enough for every stage");
  return misses(priced(least->cuts).plan, "even with the cuts that need least memory");
}

std::string Planner::misses(const Plan& plan, const std::string& which) const {
  const std::vector<Bytes>& memory = plan.predicted->memory;
  const auto worst =
      static_cast<std::size_t>(std::max_element(memory.begin(), memory.end()) - memory.begin());
  std::vector<int> cuts;
  for (std::size_t s = 1; s < plan.stages.size(); ++s) cuts.push_back(plan.stages[s].first_layer);
  const auto layer = [&](int i) { return measurement_.layers[static_cast<std::size_t>(i)].name; };
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

}  // namespace

PlanResult make_plan(const Profile& profile, const Cluster& cluster, const PlanRequest& request) {
  return Planner(profile, cluster, request).run();
}

}  // namespace stagecraft
