#include "cli/input_program.h"

#include "base/error.h"
#include "base/file_kind.h"
#include "base/files.h"
#include "base/json.h"
#include "schedules/generators/registry.h"
#include "schedules/generators/schedule.h"
#include "schedules/lowering/lowering.h"
#include "schedules/program/program_json.h"
#include "schedules/program/program_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

namespace stagecraft::cli {
namespace {

InputProgram schedule_input(const std::string& path, ScheduleProgram program, const InputRequest& request) {
  if (request.micro_batches || request.steps) {
    throw InputError({path, ""},
                     "a schedule file has its micro-batches and steps written out; "
                     "--micro-batches and --steps are for plans");
  }
  InputProgram input;
  input.path = path;
  input.synchronous = program.groups() == 1;
  input.program = std::move(program);
  return input;
}

/// PyTorch's files: named so, or beginning with an action or an idle cell.
bool looks_like_csv(const std::string& path, char first) {
  constexpr std::string_view kFirst = "0123456789,(\"";
  return path.ends_with(".csv") || kFirst.find(first) != std::string_view::npos;
}

InputProgram csv_input(const std::string& path, const std::string& text, const InputRequest& request) {
  PytorchSchedule schedule = pytorch_schedule_from_csv(text, path);
  InputProgram input = schedule_input(path, schedule_program(schedule), request);
  input.pytorch = std::move(schedule);
  return input;
}

InputProgram json_input(const std::string& path, const Json& json, const InputRequest& request) {
  const InputPlace place{path, ""};
  if (!json.is_object()) throw InputError(place, "expected a plan or a schedule: a JSON object");
  const std::string kind = kind_of(json);
  if (kind == "schedule") return schedule_input(path, program_from_json(json, path), request);
  if (kind == "profile")
    throw InputError(place, "is a profile; make a plan of it with `stagecraft plan --profile`");
  if (kind == "cluster") throw InputError(place, "is a cluster; a plan or a schedule is needed here");
  if (kind == "trace") throw InputError(place, "is a trace, drawn already; open it in ui.perfetto.dev");
  if (kind == "run config") return config_input(path, json, request);
  if (kind != "plan")
    throw InputError(place,
                     "is neither a plan (stages, schedule, micro_batches, ...) nor a schedule "
                     "(stages, group_sizes, ranks)");
  auto plan = json::read<Plan>(json, place);
  validate(plan, path);
  return plan_input(path, std::move(plan), request);
}

}  // namespace

std::string kind_of_file(const std::string& path) {
  const std::string text = read_file(path);
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string::npos || !begins_as_json(text[first])) return "";
  return kind_of(json::parse_text(text, path));
}

LoweredProgram InputProgram::lowered(const LoweringOptions& options) const {
  return has_transfers() ? lowered_program(*pytorch) : lower(program, options);
}

InputProgram plan_input(const std::string& path, Plan plan, const InputRequest& request) {
  plan.micro_batches = request.micro_batches.value_or(plan.micro_batches);
  const Schedule& schedule = find_schedule(plan.schedule.name, {path, "/schedule/name"});
  InputProgram input;
  input.path = path;
  input.synchronous = schedule.synchronous;
  std::vector<int> groups =
      segment_groups(schedule, static_cast<int>(plan.stages.size()), plan.micro_batches);
  if (request.steps && !schedule.synchronous)
    groups.assign(static_cast<std::size_t>(*request.steps), plan.micro_batches);
  input.program = plan_program(plan, std::move(groups));
  input.plan = std::move(plan);
  return input;
}

InputProgram read_input(const std::string& path, const InputRequest& request) {
  const std::string text = read_file(path);
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string::npos) throw InputError({path, ""}, "is empty; expected a plan or a schedule");
  // JSON begins with a brace, or a comment; a schedule's text form with its first line, or a comment.
  if (begins_as_json(text[first])) return json_input(path, json::parse_text(text, path), request);
  if (looks_like_csv(path, text[first])) return csv_input(path, text, request);
  if (text[first] != '#' && !std::string_view(text).substr(first).starts_with("stagecraft"))
    throw InputError({path, ""},
                     "is neither a plan (JSON) nor a schedule (JSON, text that begins with the line "
                     "\"stagecraft program 1\", or PyTorch's CSV)");
  return schedule_input(path, program_from_text(text, path), request);
}

InputProgram priced_input(const std::string& path, const InputRequest& request, bool unit_costs) {
  InputProgram input = read_input(path, request);
  const Placement& placement = input.program.placement;
  if (unit_costs) input.assumed_costs = stagecraft::unit_costs(placement.stages(), placement.world());
  if (input.costs() == nullptr) {
    throw InputError({input.path, ""},
                     input.plan ? "has no \"costs\" to price it with; `stagecraft plan` writes them, and "
                                  "--unit-costs does without"
                                : "is a schedule, and has no costs to price it with; with --unit-costs every "
                                  "forward and each half of a backward takes 1 ms");
  }
  return input;
}

std::string summary(const InputProgram& input) {
  const auto count = [](int n, const char* one, const char* many) {
    return fmt::format("{} {}", n, n == 1 ? one : many);
  };
  const ScheduleProgram& program = input.program;
  const int steps = program.groups();
  const int first = program.group_sizes.front();
  const bool even = std::all_of(program.group_sizes.begin(), program.group_sizes.end(),
                                [first](int size) { return size == first; });
  const std::string work = count(even ? first : program.micro_batches(), "micro-batch", "micro-batches");
  return fmt::format("{}{}, {} on {}, {} {}", program.schedule,
                     input.plan ? recompute_words(input.plan->recompute()) : "",
                     count(program.placement.stages(), "stage", "stages"),
                     count(program.placement.world(), "rank", "ranks"), work,
                     steps == 1 ? "per step"
                     : even     ? fmt::format("per step, {} steps", steps)
                                : fmt::format("in {} steps", steps));
}

std::string headline(const InputProgram& input) { return input.path + ": " + summary(input); }

}  // namespace stagecraft::cli
