#include "stagecraft/cli/subject.h"

#include "stagecraft/base/error.h"
#include "stagecraft/base/files.h"
#include "stagecraft/base/json.h"
#include "stagecraft/schedules/generators/registry.h"
#include "stagecraft/schedules/generators/schedule.h"
#include "stagecraft/schedules/lowering/lowering.h"
#include "stagecraft/schedules/program/program_json.h"
#include "stagecraft/schedules/program/program_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <string_view>
#include <utility>

namespace stagecraft::cli {
namespace {

bool has_any(const Json& json, std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    if (json.contains(key)) return true;
  }
  return false;
}

/// Or with a comment.
bool begins_as_json(char first) { return first == '{' || first == '[' || first == '/'; }

/// By its keys; empty for a file of no kind of ours.
std::string kind_of(const Json& json) {
  if (has_any(json, {"ranks", "group_sizes"})) return "schedule";
  if (has_any(json, {"measurements"})) return "profile";
  if (has_any(json, {"levels"})) return "cluster";
  if (has_any(json, {"traceEvents"})) return "trace";
  if (has_any(json, {"data", "optimizer", "train_batch_size", "train_micro_batch_size_per_gpu"}))
    return "run config";
  return has_any(json, {"stages", "schedule", "micro_batches", "costs"}) ? "plan" : "";
}

InputProgram schedule_subject(const std::string& path, ScheduleProgram program,
                              const SubjectRequest& request) {
  if (request.micro_batches || request.steps) {
    throw InputError({path, ""},
                     "a schedule file has its micro-batches and steps written out; "
                     "--micro-batches and --steps are for plans");
  }
  InputProgram subject;
  subject.path = path;
  subject.synchronous = program.groups() == 1;
  subject.program = std::move(program);
  return subject;
}

/// PyTorch's files: named so, or beginning with an action or an idle cell.
bool looks_like_csv(const std::string& path, char first) {
  constexpr std::string_view kFirst = "0123456789,(\"";
  return path.ends_with(".csv") || kFirst.find(first) != std::string_view::npos;
}

InputProgram csv_subject(const std::string& path, const std::string& text, const SubjectRequest& request) {
  PytorchSchedule schedule = pytorch_schedule_from_csv(text, path);
  InputProgram subject = schedule_subject(path, schedule_program(schedule), request);
  subject.pytorch = std::move(schedule);
  return subject;
}

InputProgram json_subject(const std::string& path, const Json& json, const SubjectRequest& request) {
  const InputPlace place{path, ""};
  if (!json.is_object()) throw InputError(place, "expected a plan or a schedule: a JSON object");
  const std::string kind = kind_of(json);
  if (kind == "schedule") return schedule_subject(path, program_from_json(json, path), request);
  if (kind == "profile")
    throw InputError(place, "is a profile; make a plan of it with `stagecraft plan --profile`");
  if (kind == "cluster") throw InputError(place, "is a cluster; a plan or a schedule is needed here");
  if (kind == "trace") throw InputError(place, "is a trace, drawn already; open it in ui.perfetto.dev");
  if (kind == "run config") return config_subject(path, json, request);
  if (kind != "plan")
    throw InputError(place,
                     "is neither a plan (stages, schedule, micro_batches, ...) nor a schedule "
                     "(stages, group_sizes, ranks)");
  auto plan = json::read<Plan>(json, place);
  validate(plan, path);
  return plan_subject(path, std::move(plan), request);
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

InputProgram plan_subject(const std::string& path, Plan plan, const SubjectRequest& request) {
  plan.micro_batches = request.micro_batches.value_or(plan.micro_batches);
  const Schedule& schedule = find_schedule(plan.schedule.name, {path, "/schedule/name"});
  InputProgram subject;
  subject.path = path;
  subject.synchronous = schedule.synchronous;
  std::vector<int> groups =
      segment_groups(schedule, static_cast<int>(plan.stages.size()), plan.micro_batches);
  if (request.steps && !schedule.synchronous)
    groups.assign(static_cast<std::size_t>(*request.steps), plan.micro_batches);
  subject.program = plan_program(plan, std::move(groups));
  subject.plan = std::move(plan);
  return subject;
}

InputProgram read_subject(const std::string& path, const SubjectRequest& request) {
  const std::string text = read_file(path);
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string::npos) throw InputError({path, ""}, "is empty; expected a plan or a schedule");
  // JSON begins with a brace, or a comment; a schedule's text form with its first line, or a comment.
  if (begins_as_json(text[first])) return json_subject(path, json::parse_text(text, path), request);
  if (looks_like_csv(path, text[first])) return csv_subject(path, text, request);
  if (text[first] != '#' && !std::string_view(text).substr(first).starts_with("stagecraft"))
    throw InputError({path, ""},
                     "is neither a plan (JSON) nor a schedule (JSON, text that begins with the line "
                     "\"stagecraft program 1\", or PyTorch's CSV)");
  return schedule_subject(path, program_from_text(text, path), request);
}

InputProgram priced_subject(const std::string& path, const SubjectRequest& request, bool unit_costs) {
  InputProgram subject = read_subject(path, request);
  const Placement& placement = subject.program.placement;
  if (unit_costs) subject.assumed_costs = stagecraft::unit_costs(placement.stages(), placement.world());
  if (subject.costs() == nullptr) {
    throw InputError({subject.path, ""},
                     subject.plan
                         ? "has no \"costs\" to price it with; `stagecraft plan` writes them, and "
                           "--unit-costs does without"
                         : "is a schedule, and has no costs to price it with; with --unit-costs every "
                           "forward and each half of a backward takes 1 ms");
  }
  return subject;
}

std::string summary(const InputProgram& subject) {
  const auto count = [](int n, const char* one, const char* many) {
    return fmt::format("{} {}", n, n == 1 ? one : many);
  };
  const ScheduleProgram& program = subject.program;
  const int steps = program.groups();
  const int first = program.group_sizes.front();
  const bool even = std::all_of(program.group_sizes.begin(), program.group_sizes.end(),
                                [first](int size) { return size == first; });
  const std::string work = count(even ? first : program.micro_batches(), "micro-batch", "micro-batches");
  return fmt::format("{}{}, {} on {}, {} {}", program.schedule,
                     subject.plan ? recompute_words(subject.plan->recompute()) : "",
                     count(program.placement.stages(), "stage", "stages"),
                     count(program.placement.world(), "rank", "ranks"), work,
                     steps == 1 ? "per step"
                     : even     ? fmt::format("per step, {} steps", steps)
                                : fmt::format("in {} steps", steps));
}

std::string headline(const InputProgram& subject) { return subject.path + ": " + summary(subject); }

}  // namespace stagecraft::cli
