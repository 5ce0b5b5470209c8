#include "stagecraft/cli/choose.h"

#include "stagecraft/base/files.h"
#include "stagecraft/base/json.h"
#include "stagecraft/base/table.h"
#include "stagecraft/cli/output.h"
#include "stagecraft/cli/remedies_text.h"
#include "stagecraft/schedules/pictures/front.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <set>

namespace stagecraft::cli {
namespace {

using Shown = std::vector<const PlanCandidate*>;

/// The fastest of every schedule and micro-batch size.
Shown best_of_each(const Choices& choices) {
  Shown shown;
  std::set<std::pair<std::string, std::int64_t>> seen;
  for (const PlanCandidate& choice : choices.all) {
    const Plan& plan = choice.plan;
    if (seen.emplace(plan.schedule.name, plan.micro_batch_size).second) shown.push_back(&choice);
  }
  return shown;
}

double samples_per_second(const Plan& plan) {
  const double samples = static_cast<double>(plan.micro_batches) * static_cast<double>(plan.micro_batch_size);
  return plan.predicted->step > Seconds{} ? samples / plan.predicted->step.value : 0;
}

/// "none", "all", or of every stage where they differ.
std::string recompute_of(const Plan& plan) {
  const RecomputeSettings settings = plan.recompute();
  if (std::adjacent_find(settings.begin(), settings.end(), std::not_equal_to<>()) == settings.end()) {
    return enum_name(settings.front());
  }
  std::vector<std::string> names;
  for (const Recompute setting : settings) names.push_back(enum_name(setting));
  return fmt::format("{}", fmt::join(names, " "));
}

std::string table_of(const Shown& shown, const PlanCandidate& best) {
  Table table({"<", "<schedule", "stages", "ranks", "micro-batches", "<recompute", "step ms", "samples/s",
               "bubble", "most memory", "<bound by"});
  for (const PlanCandidate* choice : shown) {
    const Plan& plan = choice->plan;
    table.row({choice == &best ? "*" : "", plan.schedule.name, fmt::format("{}", plan.stages.size()),
               fmt::format("{}", plan.placement().world()),
               fmt::format("{} of {}", plan.micro_batches, plan.micro_batch_size), recompute_of(plan),
               format_ms(choice->step()), format_count(samples_per_second(plan)),
               format_percent(plan.predicted->bubble), format_bytes(choice->memory()), choice->bound_by});
  }
  return table.text();
}

std::string label_of(const Plan& plan) {
  return fmt::format("{}, {} stages, {} x {}{}", plan.schedule.name, plan.stages.size(), plan.micro_batches,
                     plan.micro_batch_size,
                     any_recompute(plan.recompute()) ? ", recompute " + recompute_of(plan) : "");
}

std::string picture(const Choices& choices, const std::string& title) {
  const Shown front = choices.front();
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
  const Shown shown = options.pareto ? choices.front() : best_of_each(choices);
  const PlanCandidate& best = *shown.front();
  const std::string title = fmt::format(
      "{} on {}: {} plans", profile.model.empty() ? "the model" : profile.model,
      cluster.name.empty() ? fmt::format("{} devices", cluster.devices()) : cluster.name, choices.all.size());
  if (!options.output.path.empty()) {
    write_json_file(options.output.path, json::write(best.plan));
  }
  if (!options.svg.empty())
    write_file_atomically(options.svg, picture(choices, title + ", step time against memory"));
  if (options.output.as_json) return print_json(json_of(choices, best, shown));
  print(fmt::format("{}{}\n\n", title,
                    options.pareto ? ", of which no other is both faster and smaller than these:"
                                   : ", the fastest of each schedule:"));
  print(table_of(shown, best));
  if (choices.cap_step > 0) {
    print(fmt::format("  planned under memory caps that fell by {} at a time at most\n",
                      format_percent(choices.cap_step)));
  }
  for (const std::string& reason : choices.refused) print(fmt::format("  left out: {}\n", reason));
  if (!options.svg.empty()) print(fmt::format("\nPicture: {}\n", options.svg));
  print(options.output.path.empty()
            ? "\nnot written anywhere: give -o plan.json\n"
            : fmt::format("\nthe fastest is written to {}; prove it with `stagecraft check {}`\n",
                          options.output.path, options.output.path));
}

}  // namespace stagecraft::cli
