#include "schedules/program/program_json.h"

#include "schedules/program/action_fields.h"

#include <fmt/format.h>

namespace stagecraft {
namespace {

/// An action as it stands in JSON: fields that the op has not are absent.
struct ActionRecord : Action {};

void describe(auto& v, ActionRecord& a) {
  v.required("op", a.op, "what is done");
  json::optional_id(v, "stage", a.stage, "on which stage; agree_norm has none");
  json::optional_id(v, "micro_batch", a.micro_batch, "of loads, forwards and backwards");
  json::optional_id(v, "version", a.version, "of the weights read; absent: 0, for a step its group's number");
  json::optional_id(v, "group", a.group, "accumulation; absent: the micro-batch's");
  json::optional_id(v, "tie", a.tie, "which of `ties`, for a tie; absent: the first");
}

struct ProgramRecord : ProgramHeader {
  std::vector<std::vector<ActionRecord>> ranks;
};

void describe(auto& v, ProgramRecord& p) {
  v.optional("schedule", p.schedule, "the generator's name, custom for one that people wrote");
  v.optional("kind", p.kind, "train or validate");
  v.required("stages", p.placement.ranks, "the ranks that hold each stage, replicas in order",
             json::non_empty());
  v.required("group_sizes", p.group_sizes, "micro-batches of each accumulation", json::non_empty());
  v.optional("loads", p.also_load,
             "stages that load fields of the batch, besides the first and the last, which always load");
  v.optional("ties", p.ties,
             "for each weight that several layers hold the stages of those layers, in their order");
  v.optional("skips", p.skips, "what goes directly between stages that are no neighbours, ascending");
  v.optional("gradient_from", p.gradient_from,
             "the first stage with a trained weight: those before it are frozen, and have forwards alone");
  v.required("ranks", p.ranks, "one list of actions per rank");
}

}  // namespace

Json to_json(const ScheduleProgram& program) {
  ProgramRecord record{program, {}};
  for (const auto& list : program.ranks) {
    auto& written = record.ranks.emplace_back();
    for (const Action& action : list) written.push_back({action});
  }
  return json::write(record);
}

ScheduleProgram program_from_json(const Json& json, const std::string& file) {
  ProgramRecord record{{.schedule = "custom"}, {}};
  json::read_value(json, {file, ""}, record, {});
  if (!is_schedule_name(record.schedule)) {
    throw InputError({file, "/schedule"},
                     fmt::format("expected a word of visible ASCII without \"#\", found {}",
                                 json::brief(Json(record.schedule))));
  }
  validate_header(record, {file, ""});
  ScheduleProgram program{record, {}};
  if (record.ranks.size() != static_cast<std::size_t>(program.placement.world())) {
    throw InputError({file, "/ranks"},
                     "expected one list for each of the " + std::to_string(program.placement.world()) +
                         " ranks of the stages, found " + std::to_string(record.ranks.size()));
  }
  const auto groups = program.groups_by_micro_batch();
  for (std::size_t r = 0; r < record.ranks.size(); ++r) {
    auto& list = program.ranks.emplace_back();
    for (std::size_t i = 0; i < record.ranks[r].size(); ++i) {
      const ActionRecord& a = record.ranks[r][i];
      const auto refuse = [&](const std::string& key, const std::string& what) {
        throw InputError({file, fmt::format("/ranks/{}/{}/{}", r, i, key)}, what);
      };
      if (!is_schedule_level(a.op)) {
        refuse("op",
               fmt::format("\"{}\" is added by lowering, and not for a schedule to say", enum_name(a.op)));
      }
      const ActionFields fields = fields_of(a.op);
      const auto must_agree = [&](const char* key, bool expected, bool found) {
        if (found && !expected) refuse(key, fmt::format("{} has no {}", enum_name(a.op), key));
        if (!found && expected) refuse(key, fmt::format("{} needs a {}", enum_name(a.op), key));
      };
      must_agree("stage", fields.stage, a.stage.valid());
      must_agree("micro_batch", fields.micro_batch, a.micro_batch.valid());
      if (a.version.valid() && !fields.version) refuse("version", enum_name(a.op) + " has no version");
      if (a.tie.valid() && !fields.tie) refuse("tie", enum_name(a.op) + " has no tied weight");
      Action action = a;
      if (!a.group.valid() && !fields.micro_batch) refuse("group", enum_name(a.op) + " needs a group");
      if (!a.group.valid() && a.micro_batch.index() < groups.size()) {
        action.group = groups[a.micro_batch.index()];
      }
      if (!a.version.valid()) action.version = default_version(action);
      if (fields.tie && !a.tie.valid()) action.tie = TieId{0};
      const FieldError error = find_field_error(program, static_cast<int>(groups.size()), action);
      if (!error.what.empty()) refuse(error.field, error.what);
      list.push_back(action);
    }
  }
  return program;
}

}  // namespace stagecraft
