#include "schedules/program/action_fields.h"

#include <fmt/format.h>

#include <algorithm>

namespace stagecraft {

bool is_schedule_name(std::string_view name) {
  return !name.empty() &&
         std::all_of(name.begin(), name.end(), [](char c) { return c > ' ' && c <= '~' && c != '#'; });
}

FieldError find_field_error(const ProgramHeader& header, int micro_batches, const Action& action) {
  const ActionFields fields = fields_of(action.op);
  const auto outside = [](std::int32_t value, std::int32_t count) { return value < 0 || value >= count; };
  const auto message = [](const char* kind, std::int32_t value, std::int32_t count) {
    return fmt::format("{} {} is not in the program, which has {} of them", kind, value, count);
  };
  if (fields.stage && outside(action.stage.value, header.placement.stages())) {
    return {"stage", message("stage", action.stage.value, header.placement.stages())};
  }
  if (fields.micro_batch && outside(action.micro_batch.value, micro_batches)) {
    return {"micro_batch", message("micro-batch", action.micro_batch.value, micro_batches)};
  }
  if (fields.tie && outside(action.tie.value, static_cast<int>(header.ties.size()))) {
    return {"tie", message("tied weight", action.tie.value, static_cast<int>(header.ties.size()))};
  }
  if (outside(action.group.value, header.groups())) {
    return {"group", message("group", action.group.value, header.groups())};
  }
  if (fields.version && outside(action.version.value, header.groups() + 1)) {
    return {"version", fmt::format("version {} never exists: {} groups make versions 0 to {}",
                                   action.version.value, header.groups(), header.groups())};
  }
  return {};
}

}  // namespace stagecraft
