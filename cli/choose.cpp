#include "cli/choose.h"

#include "cli/output.h"
#include "schedules/base/files.h"
#include "schedules/base/table.h"
#include "schedules/pictures/front.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace stagecraft::cli {
namespace {

using Shown = std::vector<const Choice*>;

/// The fastest of every schedule and micro-batch size.
Shown best_of_each(const Choices& choices) {
  Shown shown;
  std::set<std::pair<std::string, std::int64_t>> seen;
  for (const Choice& choice : choices.all) {
    const Plan& plan = choice.candidate.plan;
    if (seen.emplace(plan.schedule.name, plan.micro_batch_size).second) shown.push_back(&choice);
  }
  return shown;
}

double samples_per_second(const Plan& plan) {
  const double samples = static_cast<double>(plan.micro_batches) * static_cast<double>(plan.micro_batch_size);
  return plan.predicted->step > Seconds{} ? samples / plan.predicted->step.value : 0;
}

std::string table_of(const Shown& shown, const Choice& best) {
  Table table({"<", "<schedule", "stages", "ranks", "micro-batches", "step ms", "samples/s", "bubble",
               "most memory", "<bound by"});
  for (const Choice* choice : shown) {
    const Plan& plan = choice->candidate.plan;
    table.row({choice == &best ? "*" : "", plan.schedule.name, fmt::format("{}", plan.stages.size()),
               fmt::format("{}", plan.placement().world()),
               fmt::format("{} of {}", plan.micro_batches, plan.micro_batch_size), format_ms(choice->step()),
               format_count(samples_per_second(plan)), format_percent(plan.predicted->bubble),
               format_bytes(choice->memory), choice->candidate.bound_by});
  }
  return table.text();
}

std::string label_of(const Plan& plan) {
  return fmt::format("{}, {} stages, {} x {}", plan.schedule.name, plan.stages.size(), plan.micro_batches,
                     plan.micro_batch_size);
}

std::string picture(const Choices& choices, const std::string& title) {
  const Shown front = choices.front();
  std::vector<FrontPoint> points;
  for (const Choice& choice : choices.all) {
    points.push_back({.time = choice.step(),
                      .memory = choice.memory,
                      .label = label_of(choice.candidate.plan),
                      .on_front = std::find(front.begin(), front.end(), &choice) != front.end()});
  }
  return front_svg(title, points, choices.all.front().candidate.plan.capacity);
}

Json json_of(const Choices& choices, const Shown& shown) {
  Json json{{"plan", json::write(choices.all.front().candidate.plan)}, {"refused", choices.refused}};
  for (const Choice* choice : shown) {
    const Plan& plan = choice->candidate.plan;
    json["choices"].push_back({{"schedule", plan.schedule.name},
                               {"stages", plan.stages.size()},
                               {"ranks", plan.placement().world()},
                               {"micro_batches", plan.micro_batches},
                               {"micro_batch_size", plan.micro_batch_size},
                               {"step_ms", choice->step().value * 1e3},
                               {"samples_per_second", samples_per_second(plan)},
                               {"bubble", plan.predicted->bubble},
                               {"memory_bytes", choice->memory.value},
                               {"bound_by", choice->candidate.bound_by},
                               {"plan", json::write(plan)}});
  }
  return json;
}

}  // namespace

void choose_from(const Profile& profile, const Cluster& cluster, const ChoiceRequest& request,
                 const ChooseOptions& options) {
  const Choices choices = choose(profile, cluster, request);
  const Choice& best = choices.all.front();
  const Shown shown = options.pareto ? choices.front() : best_of_each(choices);
  const std::string title = fmt::format(
      "{} on {}: {} plans", profile.model.empty() ? "the model" : profile.model,
      cluster.name.empty() ? fmt::format("{} devices", cluster.devices()) : cluster.name, choices.all.size());
  if (!options.output.path.empty()) {
    write_json_file(options.output.path, json::write(best.candidate.plan));
  }
  if (!options.svg.empty())
    write_file_atomically(options.svg, picture(choices, title + ", step time against memory"));
  if (options.output.as_json) return print_json(json_of(choices, shown));
  print(fmt::format("{}{}\n\n", title,
                    options.pareto ? ", of which no other is both faster and smaller than these:"
                                   : ", the fastest of each schedule:"));
  print(table_of(shown, best));
  for (const std::string& reason : choices.refused) print(fmt::format("  left out: {}\n", reason));
  if (!options.svg.empty()) print(fmt::format("\nPicture: {}\n", options.svg));
  print(options.output.path.empty()
            ? "\nnot written anywhere: give -o plan.json\n"
            : fmt::format("\nthe fastest is written to {}; prove it with `stagecraft check {}`\n",
                          options.output.path, options.output.path));
}

}  // namespace stagecraft::cli
