#include "partitioner/plan/plan.h"

#include "base/file_kind.h"
#include "base/json.h"
#include "schedules/generators/registry.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <tuple>

namespace stagecraft {

namespace {

void validate_stages(const Plan& plan, const std::string& file) {
  int next = 0;
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const StagePlan& stage = plan.stages[s];
    const std::string here = fmt::format("/stages/{}", s);
    if (stage.first_layer != next) {
      throw InputError(
          {file, here + "/first_layer"},
          s == 0 ? fmt::format("the first stage starts at layer 0, not {}", stage.first_layer)
                 : fmt::format("expected {}, where stage {} ends, found {}: stages cover the layers "
                               "in order, without gaps",
                               next, s - 1, stage.first_layer));
    }
    next = stage.last_layer;
    std::set<Rank> replicas;
    for (std::size_t r = 0; r < stage.ranks.size(); ++r) {
      if (!replicas.insert(stage.ranks[r]).second) {
        throw InputError({file, fmt::format("{}/ranks/{}", here, r)},
                         fmt::format("rank {} is there twice; a stage's replicas are different ranks",
                                     stage.ranks[r].value));
      }
    }
  }
}

/// What the schedule takes, and whether these stages are for it.
void validate_schedule(const Plan& plan, const std::string& file) {
  const Schedule& schedule = find_schedule(plan.schedule.name, {file, "/schedule/name"});
  ScheduleRequest request{.placement = plan.placement(),
                          .group_sizes = {plan.micro_batches},
                          .vertical_sync = plan.schedule.vertical_sync,
                          .clip = plan.schedule.agree_norm,
                          .warmup_extra = plan.schedule.warmup_extra,
                          .ties = plan.ties,
                          .skips = plan.skips,
                          .gradient_from = plan.gradient_from};
  schedule.check(request, {file, "/schedule"});
}

void validate_ranks(const Plan& plan, const std::string& file) {
  std::set<Rank> used;
  for (const StagePlan& stage : plan.stages) used.insert(stage.ranks.begin(), stage.ranks.end());
  for (std::int32_t r = 0; r <= used.rbegin()->value; ++r) {
    if (!used.contains(Rank{r})) {
      throw InputError(
          {file, "/stages"},
          fmt::format("rank {} holds no stage, but rank {} does; ranks count from 0 without gaps", r,
                      used.rbegin()->value));
    }
  }
}

void validate_costs(const Plan& plan, const std::string& file) {
  const CostTable& costs = *plan.costs;
  if (costs.stages.size() != plan.stages.size()) {
    throw InputError({file, "/costs/stages"}, fmt::format("costs of {} stages for a plan of {}",
                                                          costs.stages.size(), plan.stages.size()));
  }
  if (!costs.ties.empty() && costs.ties.size() != plan.ties.size()) {
    throw InputError({file, "/costs/tie_bytes"}, fmt::format("{} tied weights' bytes for {} tied weights",
                                                             costs.ties.size(), plan.ties.size()));
  }
  const int world = plan.placement().world();
  if (!costs.speed.empty() && static_cast<int>(costs.speed.size()) < world) {
    throw InputError({file, "/costs/speed"}, fmt::format("{} speeds for {} ranks; give one per rank, or none",
                                                         costs.speed.size(), world));
  }
  for (std::size_t r = 0; r < costs.speed.size(); ++r) {
    if (!(costs.speed[r] >= kLeastSpeed)) {
      throw InputError({file, fmt::format("/costs/speed/{}", r)},
                       fmt::format("expected at least {}, found {}", kLeastSpeed, costs.speed[r]));
    }
  }
  std::int64_t places = 1;
  for (const NetworkLevel& level : costs.network.levels) {
    if (places < world) places *= level.count;
  }
  if (places < world) {
    throw InputError({file, "/costs/network/levels"},
                     fmt::format("the network has {} places for {} ranks", places, world));
  }
}

}  // namespace

Seconds Plan::compute_time(StageId stage) const {
  STAGECRAFT_CHECK(costs, "a plan without costs has no times");
  const StageCosts& c = costs->stages[stage.index()];
  const StagePlan& of = stages[stage.index()];
  if (!has_backward(stage)) return c.forward;
  return c.forward + c.backward_input + c.backward_weight +
         c.forward * recomputed_share(of.recompute, static_cast<int>(of.ranks.size()), micro_batches);
}

std::vector<Seconds> Plan::compute_of_ranks() const {
  std::vector<Seconds> compute(to_size(placement().world()));
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const Seconds all = compute_time(StageId{s});
    const auto replicas = static_cast<double>(stages[s].ranks.size());
    for (const Rank rank : stages[s].ranks) {
      compute[rank.index()] += all / costs->speed_of(rank) / replicas;
    }
  }
  return compute;
}

StageId stage_of_layer(const std::vector<int>& cuts, int layer) {
  return StageId{to_size(std::ranges::upper_bound(cuts, layer) - cuts.begin())};
}

std::vector<int> segment_groups(const Schedule& schedule, int stages, int micro_batches) {
  constexpr int kAsynchronousHorizon = 16;  // groups at least, so that fill and drain weigh little
  if (schedule.synchronous) return {micro_batches};
  const int to_fill = (stages + micro_batches - 1) / micro_batches;
  return std::vector<int>(to_size(std::max(kAsynchronousHorizon, 2 * to_fill)), micro_batches);
}

void validate(const Plan& plan, const std::string& file) {
  if (plan.stages.empty()) throw InputError({file, "/stages"}, "a plan needs a stage");
  validate_stages(plan, file);
  validate_ranks(plan, file);
  validate_header({.schedule = "", .placement = plan.placement(), .group_sizes = {1}, .ties = plan.ties},
                  {file, "/ties"});
  validate_header({.schedule = "", .placement = plan.placement(), .group_sizes = {1}, .skips = plan.skips},
                  {file, "/skips"});
  validate_header({.schedule = "",
                   .placement = plan.placement(),
                   .group_sizes = {1},
                   .ties = plan.ties,
                   .gradient_from = plan.gradient_from},
                  {file, "/gradient_from"});
  validate_schedule(plan, file);
  if (plan.costs) validate_costs(plan, file);
  if (plan.program) validate_carried(plan, file);
  if (plan.predicted && !plan.predicted->memory.empty() &&
      static_cast<int>(plan.predicted->memory.size()) != plan.placement().world()) {
    throw InputError({file, "/predicted/memory_bytes"},
                     fmt::format("{} ranks' memory for {} ranks", plan.predicted->memory.size(),
                                 plan.placement().world()));
  }
}

Plan read_plan(const std::string& path) {
  const Json json = json::parse_file(path);
  require_kind(json, {path, ""}, "plan");
  auto plan = json::read<Plan>(json, {path, ""});
  validate(plan, path);
  return plan;
}

ScheduleRequest schedule_request(const ScheduleChoice& choice, Placement placement,
                                 std::vector<int> group_sizes, RecomputeSettings recompute) {
  return {.placement = std::move(placement),
          .group_sizes = std::move(group_sizes),
          .vertical_sync = choice.vertical_sync,
          .clip = choice.agree_norm,
          .warmup_extra = choice.warmup_extra,
          .recompute = std::move(recompute)};
}

ScheduleProgram plan_program(const Plan& plan, std::vector<int> group_sizes) {
  if (plan.program && group_sizes == std::vector<int>{plan.program->micro_batches}) {
    return carried_program(plan, "plan");
  }
  ScheduleRequest request =
      schedule_request(plan.schedule, plan.placement(), std::move(group_sizes), plan.recompute());
  request.also_load = plan.also_load();
  request.ties = plan.ties;
  request.skips = plan.skips;
  request.gradient_from = plan.gradient_from;
  request.costs = plan.costs ? &*plan.costs : nullptr;
  request.capacity = plan.capacity;
  return find_schedule(plan.schedule.name).generate(request);
}

bool same_program(const Plan& a, const Plan& b) {
  const auto asked = [](const Plan& plan) {
    return std::tuple(plan.placement(), plan.recompute(), plan.also_load(), plan.ties, plan.skips,
                      plan.gradient_from);
  };
  return asked(a) == asked(b);
}

}  // namespace stagecraft
