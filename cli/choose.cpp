#include "cli/choose.h"

#include "base/json.h"
#include "base/table.h"
#include "base/text.h"
#include "cli/output.h"
#include "cli/output_file.h"
#include "cli/remedies_text.h"
#include "schedules/pictures/front.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <set>

namespace stagecraft::cli {
namespace {

using Shown = std::vector<PlanCandidate*>;
constexpr std::size_t kJittered = 5;

/// The fastest of every schedule and micro-batch size.
Shown best_of_each(Choices& choices) {
  Shown shown;
  std::set<std::pair<std::string, std::int64_t>> seen;
  for (PlanCandidate& choice : choices.all) {
    const Plan& plan = choice.plan;
    if (seen.emplace(plan.schedule.name, plan.micro_batch_size).second) shown.push_back(&choice);
  }
  return shown;
}

/// Those that no other beats in both time and memory.
Shown front_of(Choices& choices) {
  const std::vector<const PlanCandidate*> front = choices.front();
  Shown shown;
  for (PlanCandidate& choice : choices.all) {
    if (std::ranges::find(front, &choice) != front.end()) shown.push_back(&choice);
  }
  return shown;
}

/// Simulates the first of those shown with times that vary. Returns the best: the fastest, or with p95 the one
/// whose 95th percentile is least.
const PlanCandidate& jittered_best(const Shown& shown, const PlanOutput& output) {
  if (!output.jitter) return *shown.front();
  const std::size_t count = std::min(shown.size(), kJittered);
  for (std::size_t i = 0; i < count; ++i) shown[i]->jittered = jittered_step(shown[i]->plan, *output.jitter);
  if (output.choose_by == ChooseBy::step) return *shown.front();
  return **std::min_element(
      shown.begin(), shown.begin() + static_cast<std::ptrdiff_t>(count),
      [](const PlanCandidate* a, const PlanCandidate* b) { return a->jittered->p95 < b->jittered->p95; });
}

double samples_per_second(const Plan& plan) {
  const double samples = static_cast<double>(plan.micro_batches) * static_cast<double>(plan.micro_batch_size);
  return plan.predicted->step > Seconds{} ? samples / plan.predicted->step.value : 0;
}

/// "none", "all"; where stages differ "2 all, 6 none" in their order, or "on 14 of 21 stages".
std::string recompute_of(const Plan& plan) {
  const RecomputeSettings settings = plan.recompute();
  if (std::adjacent_find(settings.begin(), settings.end(), std::not_equal_to<>()) == settings.end()) {
    return enum_name(settings.front());
  }
  // Stages in a row that do the same; where they alternate, how many repeat anything.
  constexpr std::size_t kMostRuns = 3;
  std::vector<std::string> runs;
  for (auto stage = settings.begin(); stage != settings.end();) {
    const auto end = std::find_if(stage, settings.end(), [&](Recompute other) { return other != *stage; });
    runs.push_back(fmt::format("{} {}", end - stage, enum_name(*stage)));
    stage = end;
  }
  if (runs.size() <= kMostRuns) return fmt::format("{}", fmt::join(runs, ", "));
  const auto none = std::count(settings.begin(), settings.end(), Recompute::none);
  return fmt::format("on {} of {} stages", static_cast<std::ptrdiff_t>(settings.size()) - none,
                     settings.size());
}

std::string table_of(const Shown& shown, const PlanCandidate& best) {
  const bool jittered = shown.front()->jittered.has_value();
  std::vector<std::string> columns{"<",          "<schedule", "stages", "ranks", "micro-batches",
                                   "<recompute", "step ms"};
  if (jittered) columns.insert(columns.end(), {"p50 ms", "p95 ms"});
  columns.insert(columns.end(), {"samples/s", "bubble", "most memory", "<bound by"});
  Table table(std::move(columns));
  table.keys(2);
  for (const PlanCandidate* choice : shown) {
    const Plan& plan = choice->plan;
    std::vector<Table::Cell> cells{choice == &best ? "*" : "",
                                   plan.schedule.name,
                                   fmt::format("{}", plan.stages.size()),
                                   fmt::format("{}", plan.placement().world()),
                                   fmt::format("{} of {}", plan.micro_batches, plan.micro_batch_size),
                                   recompute_of(plan),
                                   choice->step()};
    if (jittered) {
      const auto& times = choice->jittered;
      cells.push_back(times ? Table::Cell(times->p50) : "-");
      cells.push_back(times ? Table::Cell(times->p95) : "-");
    }
    cells.push_back(format_count(samples_per_second(plan)));
    cells.push_back(format_percent(plan.predicted->bubble));
    cells.push_back(format_bytes(choice->memory()));
    cells.push_back(choice->bound_by);
    table.row(std::move(cells));
  }
  return table.text();
}

std::string label_of(const Plan& plan) {
  return fmt::format("{}, {}, {} x {}{}", plan.schedule.name,
                     plural(static_cast<std::int64_t>(plan.stages.size()), "stage"), plan.micro_batches,
                     plan.micro_batch_size,
                     any_recompute(plan.recompute()) ? ", recompute " + recompute_of(plan) : "");
}

std::string picture(const Choices& choices, const std::string& title) {
  const std::vector<const PlanCandidate*> front = choices.front();
  std::vector<FrontPoint> points;
  for (const PlanCandidate& choice : choices.all) {
    points.push_back({.time = choice.step(),
                      .memory = choice.memory(),
                      .label = label_of(choice.plan),
                      .on_front = std::find(front.begin(), front.end(), &choice) != front.end()});
  }
  return front_svg(title, points, choices.all.front().plan.capacity);
}

Json json_of(const Choices& choices, const PlanCandidate& best, const Shown& shown) {
  Json json{{"plan", json::write(best.plan)}, {"refused", choices.refused}};
  if (choices.cap_step > 0) json["cap_step"] = choices.cap_step;
  for (const PlanCandidate* choice : shown) {
    const Plan& plan = choice->plan;
    json["choices"].push_back({{"schedule", plan.schedule.name},
                               {"stages", plan.stages.size()},
                               {"ranks", plan.placement().world()},
                               {"micro_batches", plan.micro_batches},
                               {"micro_batch_size", plan.micro_batch_size},
                               {"recompute", recompute_of(plan)},
                               {"step_ms", choice->step().value * 1e3},
                               {"samples_per_second", samples_per_second(plan)},
                               {"bubble", plan.predicted->bubble},
                               {"memory_bytes", choice->memory().value},
                               {"bound_by", choice->bound_by},
                               {"plan", json::write(plan)}});
    if (!choice->jittered) continue;
    json["choices"].back()["p50_ms"] = choice->jittered->p50.value * 1e3;
    json["choices"].back()["p95_ms"] = choice->jittered->p95.value * 1e3;
  }
  return json;
}

/// What there is to choose from, or a refusal that says what would fit.
Choices choices_or_advice(const Profile& profile, const Cluster& cluster, const ChoiceRequest& request) {
  try {
    return choose(profile, cluster, request);
  } catch (const RefusedError& error) {
    throw RefusedError(error.what() + remedies_text(profile, cluster, requests_of(request)));
  }
}

/// The first of them says why; the others, of falling caps or of many schedules, are counted.
void leave_out_beyond(Choices& choices, const std::vector<MemoryLimit>& machine) {
  std::string first;
  const std::size_t left_out = std::erase_if(choices.all, [&](const PlanCandidate& choice) {
    const std::optional<std::string> reason = beyond_machine(choice.plan, machine);
    if (reason && first.empty()) first = label_of(choice.plan) + ": " + *reason;
    return reason.has_value();
  });
  if (left_out > 1) first += fmt::format(" (and {} more plans likewise)", left_out - 1);
  if (choices.all.empty()) throw RefusedError(fmt::format("{}\n{}", first, kWhatMayFit));
  if (left_out > 0) choices.refused.push_back(first);
}

}  // namespace

void choose_from(const Profile& profile, const Cluster& cluster, const ChoiceRequest& request,
                 const ChooseOptions& options, const std::vector<MemoryLimit>& machine) {
  Choices choices = choices_or_advice(profile, cluster, request);
  leave_out_beyond(choices, machine);
  const Shown shown = options.pareto ? front_of(choices) : best_of_each(choices);
  const PlanCandidate& best = jittered_best(shown, options.output);
  const std::string title =
      fmt::format("{} on {}: {}", profile.model.empty() ? "the model" : profile.model,
                  cluster.name.empty() ? plural(cluster.devices(), "device") : cluster.name,
                  plural(static_cast<std::int64_t>(choices.all.size()), "plan"));
  if (!options.output.path.empty()) {
    write_json_output(options.output.path, json::write(best.plan));
  }
  if (!options.svg.empty()) write_output(options.svg, picture(choices, title + ", step time against memory"));
  std::string text;
  if (profile.estimated_from)
    text += fmt::format("Times are estimates, not measured: {}.\n", *profile.estimated_from);
  text += fmt::format("{}{}\n\n", title,
                      options.pareto ? ", of which no other is both faster and smaller than these:"
                                     : ", the fastest of each schedule:");
  text += table_of(shown, best);
  if (choices.cap_step > 0) {
    text += fmt::format("  planned under memory caps that fell by {} at a time at most\n",
                        format_percent(choices.cap_step));
  }
  for (const std::string& reason : choices.refused) text += fmt::format("  left out: {}\n", reason);
  if (!options.output.tables.empty()) write_output(options.output.tables, printed(text));
  if (options.output.as_json) return print_json(json_of(choices, best, shown));
  print(text);
  if (!options.svg.empty()) print(fmt::format("\nPicture: {}\n", options.svg));
  print(options.output.path.empty()
            ? "\nnot written anywhere: give -o plan.json\n"
            : fmt::format("\nthe {} is written to {}; prove it with `stagecraft check {}`\n",
                          options.output.choose_by == ChooseBy::step ? "fastest" : "one with the least p95",
                          options.output.path, options.output.path));
}

}  // namespace stagecraft::cli
