// How a plan looks to people and to programs.

#include "base/json.h"
#include "base/table.h"
#include "base/text.h"
#include "cli/planning.h"
#include "partitioner/plan/plan_pricer.h"
#include "partitioner/plan/stage_memory.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace stagecraft::cli {
namespace {

std::vector<int> cuts_of(const Plan& plan) {
  std::vector<int> cuts;
  for (std::size_t s = 1; s < plan.stages.size(); ++s) cuts.push_back(plan.stages[s].first_layer);
  return cuts;
}

/// 1240 as "1,240".
std::string with_commas(std::int64_t n) {
  std::string text = fmt::format("{}", n);
  for (int at = static_cast<int>(text.size()) - 3; at > 0; at -= 3)
    text.insert(static_cast<std::size_t>(at), ",");
  return text;
}

/// "0", "0-3", "0, 2".
std::string ranks_text(const std::vector<Rank>& ranks) {
  std::vector<std::int32_t> numbers;
  for (const Rank rank : ranks) numbers.push_back(rank.value);
  const bool run = numbers.back() - numbers.front() + 1 == static_cast<std::int32_t>(numbers.size());
  return numbers.size() > 1 && run ? fmt::format("{}-{}", numbers.front(), numbers.back())
                                   : fmt::format("{}", fmt::join(numbers, ", "));
}

/// " on 8 devices" where stages have replicas.
std::string replicas_text(const Plan& plan) {
  const bool any = std::any_of(plan.stages.begin(), plan.stages.end(),
                               [](const StagePlan& stage) { return stage.ranks.size() > 1; });
  return any ? " on " + plural(plan.placement().world(), "device") : "";
}

std::string stage_table(const Plan& plan, const Measurement& measurement) {
  const bool repeats = any_recompute(plan.recompute());
  std::vector<std::string> columns{"stage", "rank",       "<layers",    "<",         "F ms",
                                   "B ms",  "of busiest", "parameters", "kept / mb", "memory"};
  if (repeats) columns.emplace_back("<repeats");
  Table table(columns);
  table.keys(2);
  const auto name = [&](int layer) { return measurement.layers[static_cast<std::size_t>(layer)].name; };
  for (std::size_t s = 0; s < plan.stages.size(); ++s) {
    const StagePlan& stage = plan.stages[s];
    const StageCosts& costs = plan.costs->stages[s];
    double speed = plan.costs->speed_of(stage.ranks.front());
    for (const Rank rank : stage.ranks) speed = std::min(speed, plan.costs->speed_of(rank));
    const auto replicas = static_cast<double>(stage.ranks.size());
    Bytes memory;
    for (const Rank rank : stage.ranks) memory = std::max(memory, plan.predicted->memory[rank.index()]);
    const Seconds backward = (costs.backward_input + costs.backward_weight) / speed;
    const Seconds compute = plan.compute_time(StageId{s}) / speed;
    const bool several = stage.last_layer - stage.first_layer > 1;
    const StageMemory held(costs, s + 1 == plan.stages.size());
    std::vector<Table::Cell> cells{
        fmt::format("{}", s),
        ranks_text(stage.ranks),
        several ? fmt::format("{}-{}", stage.first_layer, stage.last_layer - 1)
                : fmt::format("{}", stage.first_layer),
        several ? name(stage.first_layer) + " .. " + name(stage.last_layer - 1) : name(stage.first_layer),
        costs.forward / speed,
        backward,
        format_percent(
            plan.predicted->bottleneck > Seconds{} ? compute / replicas / plan.predicted->bottleneck : 0),
        format_bytes(costs.parameters),
        format_bytes(held.input + held.activations),
        format_bytes(memory)};
    if (repeats) cells.push_back(enum_name(stage.recompute));
    table.row(cells);
  }
  return table.text();
}

std::string candidates_table(const PlanResult& result) {
  const bool jittered = result.best.jittered.has_value();
  std::vector<std::string> columns{"<", "stages", "<placement", "step ms"};
  if (jittered) columns.insert(columns.end(), {"p50 ms", "p95 ms"});
  columns.insert(columns.end(), {"bubble", "most memory", "<bound by", "<cuts"});
  Table table(columns);
  table.keys(2);
  const auto row = [&](const PlanCandidate& candidate, const char* mark) {
    const Prediction& predicted = *candidate.plan.predicted;
    std::vector<Table::Cell> cells{mark, fmt::format("{}", candidate.plan.stages.size()), candidate.placement,
                                   predicted.step};
    for (const auto part : {&JitteredStep::p50, &JitteredStep::p95}) {
      if (jittered) cells.push_back(candidate.jittered ? Table::Cell((*candidate.jittered).*part) : "");
    }
    const Bytes most = *std::max_element(predicted.memory.begin(), predicted.memory.end());
    cells.insert(cells.end(), {format_percent(predicted.bubble), format_bytes(most), candidate.bound_by,
                               fmt::format("{}", fmt::join(cuts_of(candidate.plan), ","))});
    table.row(cells);
  };
  row(result.best, "*");
  for (const PlanCandidate& other : result.others) row(other, "");
  return table.text();
}

std::string proof_text(const StepProof& proof, Seconds step) {
  const std::string family = proof.whole_family ? "" : " of equally wide stages";
  const std::string searched = fmt::format(
      "{} searched, {} simulated", plural(static_cast<std::int64_t>(proof.layouts), "layout") + family,
      plural(proof.simulated, "plan"));
  if (proof.optimal) return "no plan's step is shorter: " + searched;
  return fmt::format("at most {} above the lower bound of {}: {}", format_percent(proof.gap(step)),
                     format_duration(proof.bound), searched);
}

std::string search_text(const SearchResult& search) {
  return fmt::format("from {}, {} orders tried; {}", search.from, with_commas(search.orders),
                     search.optimal ? "proved optimal for these stages"
                                    : format_percent(search.gap) + " above the lower bound for these stages");
}

/// What a step of the plan does per second.
struct Speed {
  double samples = 0;
  std::optional<double> tokens, share_of_peak;  ///< absent where the profile does not know
};
std::optional<Speed> speed_of(const Plan& plan, const Profile& profile) {
  if (plan.predicted->step <= Seconds{}) return std::nullopt;
  // A multiply-add is two operations; backward has two products for each of forward's.
  constexpr double kOperations = 6;
  Speed speed;
  speed.samples = static_cast<double>(plan.micro_batches) * static_cast<double>(plan.micro_batch_size) /
                  plan.predicted->step.value;
  if (profile.tokens_per_sample)
    speed.tokens = speed.samples * static_cast<double>(*profile.tokens_per_sample);
  if (profile.multiply_adds_per_sample && profile.peak_tflops) {
    const double peak = *profile.peak_tflops * 1e12 * plan.placement().world();
    speed.share_of_peak =
        kOperations * static_cast<double>(*profile.multiply_adds_per_sample) * speed.samples / peak;
  }
  return speed;
}

/// ", 5.12 samples/s, 21.0 k tokens/s, 41.2 % of the devices' peak".
std::string speed_text(const Plan& plan, const Profile& profile) {
  const std::optional<Speed> speed = speed_of(plan, profile);
  if (!speed) return "";
  std::string text = fmt::format(", {} samples/s", format_count(speed->samples));
  if (speed->tokens) text += fmt::format(", {} tokens/s", format_count(*speed->tokens));
  if (speed->share_of_peak)
    text += fmt::format(", {} of the devices' peak", format_percent(*speed->share_of_peak));
  return text;
}

}  // namespace

std::string plan_text(const PlanResult& result, const Profile& profile, const Cluster& cluster) {
  const Plan& plan = result.best.plan;
  const Prediction& predicted = *plan.predicted;
  const Measurement& measurement = profile.at(plan.micro_batch_size);
  std::string out = fmt::format(
      "{} on {}: {}, {}{}{}, {} of {} per step\n\n", profile.model.empty() ? "the model" : profile.model,
      cluster.name.empty() ? plural(cluster.devices(), "device") : cluster.name,
      plural(static_cast<int>(plan.stages.size()), "stage") + replicas_text(plan), plan.schedule.name,
      plan.schedule.vertical_sync ? " with vertical sync" : "", recompute_words(plan.recompute()),
      plural(plan.micro_batches, "micro-batch"), plural(plan.micro_batch_size, "sample"));
  if (profile.estimated_from) {
    out +=
        fmt::format("Times are estimates, not measured: {}. Kept bytes are exact, transients estimates.\n\n",
                    *profile.estimated_from);
  }
  out += stage_table(plan, measurement);
  const auto line = [&](const char* key, const std::string& value) {
    out += fmt::format("  {:<9} {}\n", key, value);
  };
  out += '\n';
  line("step", fmt::format("{} predicted{} ({} if transfers took no time)", format_duration(predicted.step),
                           speed_text(plan, profile), format_duration(predicted.step_ideal)));
  if (const auto agreement = agreement_cost(plan)) {
    line("norm", fmt::format("{} of the step, because all ranks agree on the gradient's norm",
                             format_duration(*agreement)));
  }
  if (const auto& jittered = result.best.jittered) {
    line("jitter", fmt::format("half of the steps take up to {}, 95 % up to {}",
                               format_duration(jittered->p50), format_duration(jittered->p95)));
  }
  line("bubble", format_percent(predicted.bubble) + " of the ranks' time is idle");
  line("bound by", result.best.bound_by);
  if (result.proof) line("proved", proof_text(*result.proof, predicted.step));
  if (result.proof && result.proof->without_cap) {
    line("", fmt::format("and by memory: without its cap these stages would take {}",
                         format_duration(*result.proof->without_cap)));
  }
  if (result.best.search) line("searched", search_text(*result.best.search));
  if (plan.capacity) line("memory", format_bytes(*plan.capacity) + " per device, reserve taken off");
  if (!result.others.empty() || !result.infeasible.empty() || !result.not_found.empty()) {
    out += fmt::format("\n{}", candidates_table(result));
    constexpr std::size_t kReasons = 3;
    const auto reasons = [&](const std::vector<std::string>& all, const char* what, const char* more) {
      const std::size_t shown = std::min(kReasons, all.size());
      for (std::size_t i = 0; i < shown; ++i) out += fmt::format("  {}: {}\n", what, all[i]);
      if (all.size() > shown) out += fmt::format("  {} {} more (--json has all)\n", more, all.size() - shown);
    };
    reasons(result.infeasible, "does not fit", "nor do");
    reasons(result.not_found, "nothing found that fits", "nor in");
  }
  return out;
}

Json plan_json(const PlanResult& result, const Profile& profile) {
  const auto search_json = [](const SearchResult& search) {
    return Json{
        {"from", search.from}, {"orders", search.orders}, {"gap", search.gap}, {"optimal", search.optimal}};
  };
  const auto jitter_json = [](const JitteredStep& jittered) {
    return Json{{"p50_ms", jittered.p50.value * 1e3}, {"p95_ms", jittered.p95.value * 1e3}};
  };
  const auto brief = [&](const PlanCandidate& candidate) {
    Json json;
    json["stages"] = candidate.plan.stages.size();
    json["cuts"] = cuts_of(candidate.plan);
    json["bound_by"] = candidate.bound_by;
    json["placement"] = candidate.placement;
    if (candidate.search) json["search"] = search_json(*candidate.search);
    if (candidate.jittered) json["jitter"] = jitter_json(*candidate.jittered);
    json["predicted"] = json::write(*candidate.plan.predicted);
    return json;
  };
  Json json;
  json["plan"] = json::write(result.best.plan);
  json["bound_by"] = result.best.bound_by;
  if (const auto speed = speed_of(result.best.plan, profile)) {
    json["samples_per_second"] = speed->samples;
    if (speed->tokens) json["tokens_per_second"] = *speed->tokens;
    if (speed->share_of_peak) json["share_of_peak"] = *speed->share_of_peak;
  }
  if (const auto agreement = agreement_cost(result.best.plan)) json["agreement_ms"] = agreement->value * 1e3;
  json["placement"] = result.best.placement;
  if (result.best.search) json["search"] = search_json(*result.best.search);
  if (result.best.jittered) json["jitter"] = jitter_json(*result.best.jittered);
  if (result.proof) {
    const StepProof& proof = *result.proof;
    Json& written = json["proof"];
    written["bound_ms"] = proof.bound.value * 1e3;
    written["gap"] = proof.gap(result.best.plan.predicted->step);
    written["optimal"] = proof.optimal;
    written["whole_family"] = proof.whole_family;
    written["layouts"] = proof.layouts;
    written["simulated"] = proof.simulated;
    if (proof.without_cap) written["without_cap_ms"] = proof.without_cap->value * 1e3;
  }
  json["others"] = Json::array();
  for (const PlanCandidate& other : result.others) json["others"].push_back(brief(other));
  json["infeasible"] = result.infeasible;
  json["not_found"] = result.not_found;
  return json;
}

}  // namespace stagecraft::cli
