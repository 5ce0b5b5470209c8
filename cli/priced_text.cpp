// Tables and JSON of `simulate`.

#include "base/json.h"
#include "base/statistics.h"
#include "base/table.h"
#include "cli/priced.h"
#include "partitioner/plan/compare_costs.h"
#include "schedules/costs/collectives.h"
#include "schedules/rules/reductions.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

namespace stagecraft::cli {
namespace {

/// The makespan below which `share` of the samples lie.
Seconds quantile_of(const std::vector<Seconds>& samples, double share) {
  std::vector<double> values;
  for (const Seconds sample : samples) values.push_back(sample.value);
  return Seconds{quantile(std::move(values), share)};
}

std::string stages_of(const InputProgram& input, std::size_t rank) {
  std::string text;
  for (const StageId stage : input.program.placement.stages_of(Rank{rank}))
    text += fmt::format("{}{}", text.empty() ? "" : ",", stage.value);
  return text;
}

double busy_share(const RankTimes& rank, const Simulation& simulation) {
  return simulation.makespan > Seconds{} ? rank.busy() / simulation.makespan : 0;
}

/// An all-reduce of each stage that has replicas, in whole.
struct Reduction {
  StageId stage;
  int replicas;
  AllReduce time;
};

std::vector<Reduction> reductions(const InputProgram& input) {
  std::vector<Reduction> all;
  const CostTable& costs = *input.costs();
  for (std::size_t s = 0; s < costs.stages.size(); ++s) {
    std::vector<Rank> members = input.program.placement.ranks[s];
    if (members.size() < 2) continue;
    std::sort(members.begin(), members.end());
    all.push_back({StageId{s}, static_cast<int>(members.size()),
                   all_reduce(costs.network, members, costs.stages[s].parameters)});
  }
  return all;
}

/// The sum of a tied weight's gradients over all that hold it.
struct TieSum {
  std::size_t tie;
  std::size_t ranks;
  Bytes bytes;
  Seconds time;
};

std::vector<TieSum> tie_sums(const InputProgram& input) {
  std::vector<TieSum> all;
  const CostTable& costs = *input.costs();
  for (std::size_t k = 0; k < input.program.ties.size(); ++k) {
    const std::vector<Rank> members = members_of(input.program.placement, input.program.ties[k]);
    const Bytes bytes = costs.tied(TieId{k});
    all.push_back({k, members.size(), bytes, all_reduce(costs.network, members, bytes).time()});
  }
  return all;
}

std::string holders_of(const InputProgram& input, std::size_t tie) {
  std::vector<std::int32_t> stages;
  for (const StageId stage : input.program.ties[tie]) stages.push_back(stage.value);
  return fmt::format("{}", fmt::join(stages, ", "));
}

Json lost_json(const LostTime& lost) {
  return {{"imbalance_ms", lost.imbalance.value * 1e3},
          {"dependency_ms", lost.dependency.value * 1e3},
          {"exposed_transfer_ms", lost.exposed_transfer.value * 1e3},
          {"blocked_send_ms", lost.blocked_send.value * 1e3},
          {"memory_ms", lost.memory.value * 1e3},
          {"barrier_ms", lost.barrier.value * 1e3}};
}

}  // namespace

std::string priced_text(const InputProgram& input, const SimulationReport& priced) {
  const Simulation& simulation = priced.simulation;
  const Simulation& free = priced.free_links;
  const int steps = priced.steps;
  std::string text;
  const double added = free.makespan > Seconds{} ? simulation.makespan / free.makespan - 1 : 0;
  Table summary({"<", "simulated", "free links", "<"});
  summary.row({steps == 1 ? "makespan" : fmt::format("makespan of {} steps", steps),
               format_duration(simulation.makespan), format_duration(free.makespan),
               fmt::format("communication adds {}", format_percent(added))});
  if (steps > 1) {
    summary.row({"a step, on average", format_duration(simulation.makespan / steps),
                 format_duration(free.makespan / steps), "fill and drain included"});
  }
  if (priced.steady_step &&
      (steps > 1 || clearly_less(priced.steady_step->value, simulation.makespan.value))) {
    summary.row({"a step, once steady", format_duration(*priced.steady_step), "", "what one more step adds"});
  }
  if (!priced.samples.empty()) {
    const std::string of = fmt::format("of {} samples{}", priced.samples.size(),
                                       input.synchronous && steps > 1 ? " of one step" : "");
    summary.row({"with jitter, median", format_duration(quantile_of(priced.samples, 0.5)), "", of});
    summary.row({"with jitter, 95 %", format_duration(quantile_of(priced.samples, 0.95)), "", of});
  }
  summary.row({"bubble", format_percent(simulation.bubble), format_percent(free.bubble),
               "idle share of the mean rank"});
  text += summary.text();
  const bool is_long = simulation.makespan >= Seconds{10};
  const char* const unit = is_long ? "s" : "ms";
  text += fmt::format("\nTimes in {}{}:\n", unit, steps > 1 ? ", all steps together" : "");
  Table table({"rank", "stage", "forward", "backward", "step", "wait activation", "wait gradient",
               "wait send", "wait other", "idle at end", "busy"});
  table.in_seconds(is_long);
  for (std::size_t r = 0; r < simulation.ranks.size(); ++r) {
    const RankTimes& rank = simulation.ranks[r];
    table.row({std::to_string(r), stages_of(input, r), rank.forward, rank.backward, rank.step,
               rank.wait_activation, rank.wait_gradient, rank.wait_send, rank.wait_other, rank.idle_end,
               format_percent(busy_share(rank, simulation))});
  }
  text += table.text();
  text += fmt::format("\nWhy ranks are idle, in {} (docs/reference/simulator.md):\n", unit);
  Table lost(
      {"rank", "imbalance", "dependency", "exposed transfer", "blocked send", "memory", "barrier", "idle"});
  lost.in_seconds(is_long);
  for (std::size_t r = 0; r < priced.lost.size(); ++r) {
    const LostTime& rank = priced.lost[r];
    lost.row({std::to_string(r), rank.imbalance, rank.dependency, rank.exposed_transfer, rank.blocked_send,
              rank.memory, rank.barrier, rank.total()});
  }
  text += lost.text();
  const std::vector<Reduction> reduced = reductions(input);
  if (!reduced.empty()) text += "\nGradients summed over replicas, by the faster of two ways:\n";
  for (const Reduction& reduction : reduced) {
    const AllReduce& time = reduction.time;
    text += fmt::format("  stage {} over {} ranks: ring {}, by level {}; {}\n", reduction.stage.value,
                        reduction.replicas, format_duration(time.ring),
                        time.by_level ? format_duration(*time.by_level) : "-",
                        time.uses_levels() ? "by level" : "ring");
  }
  const std::vector<TieSum> tied = tie_sums(input);
  if (!tied.empty()) text += "\nGradients of tied weights summed over the layers that hold them:\n";
  for (const TieSum& sum : tied) {
    text += fmt::format("  weight {} of layers on stages {}: {} over {} rank{}, {}\n", sum.tie,
                        holders_of(input, sum.tie), format_bytes(sum.bytes), sum.ranks,
                        sum.ranks == 1 ? "" : "s", format_duration(sum.time));
  }
  return text;
}

Json priced_json(const InputProgram& input, const SimulationReport& priced) {
  const Simulation& simulation = priced.simulation;
  const ScheduleProgram& program = input.program;
  Json json{
      {"file", input.path},
      {"schedule", program.schedule},
      {"stages", program.placement.stages()},
      {"ranks", program.placement.world()},
      {"micro_batches", program.group_sizes.front()},
      {"steps", priced.steps},
      {"makespan_ms", simulation.makespan.value * 1e3},
      {"bubble", simulation.bubble},
      {"free_links",
       {{"makespan_ms", priced.free_links.makespan.value * 1e3}, {"bubble", priced.free_links.bubble}}}};
  if (priced.steady_step) json["steady_step_ms"] = priced.steady_step->value * 1e3;
  if (!priced.samples.empty()) {
    json["jitter"] = {{"samples", priced.samples.size()},
                      {"makespan_p50_ms", quantile_of(priced.samples, 0.5).value * 1e3},
                      {"makespan_p95_ms", quantile_of(priced.samples, 0.95).value * 1e3}};
  }
  for (const Reduction& reduction : reductions(input)) {
    const AllReduce& time = reduction.time;
    json["reductions"].push_back({{"stage", reduction.stage.value},
                                  {"ranks", reduction.replicas},
                                  {"ring_ms", time.ring.value * 1e3},
                                  {"by_level_ms", time.by_level ? Json(time.by_level->value * 1e3) : Json()},
                                  {"used", time.uses_levels() ? "by_level" : "ring"}});
  }
  for (const TieSum& sum : tie_sums(input)) {
    json["ties"].push_back(
        {{"tie", sum.tie}, {"ranks", sum.ranks}, {"bytes", sum.bytes.value}, {"ms", sum.time.value * 1e3}});
  }
  json["rank_times"] = Json::array();
  for (std::size_t r = 0; r < simulation.ranks.size(); ++r) {
    const RankTimes& rank = simulation.ranks[r];
    Json stages = Json::array();
    for (const StageId stage : program.placement.stages_of(Rank{r})) stages.push_back(stage.value);
    json["rank_times"].push_back(Json{{"rank", r},
                                      {"stages", std::move(stages)},
                                      {"forward_ms", rank.forward.value * 1e3},
                                      {"backward_ms", rank.backward.value * 1e3},
                                      {"step_ms", rank.step.value * 1e3},
                                      {"wait_activation_ms", rank.wait_activation.value * 1e3},
                                      {"wait_gradient_ms", rank.wait_gradient.value * 1e3},
                                      {"wait_send_ms", rank.wait_send.value * 1e3},
                                      {"wait_other_ms", rank.wait_other.value * 1e3},
                                      {"idle_at_end_ms", rank.idle_end.value * 1e3},
                                      {"lost", lost_json(priced.lost[r])},
                                      {"busy", busy_share(rank, simulation)}});
  }
  return json;
}

}  // namespace stagecraft::cli
