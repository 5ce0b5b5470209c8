#pragma once

// Which fields an action of the schedule level has, and whether their values lie in the program: what the two
// readers, of text and of JSON, must agree on.

#include "schedules/program/program.h"

#include <string>
#include <string_view>

namespace stagecraft {

struct ActionFields {
  bool stage = true;
  bool micro_batch = false;  ///< otherwise the action is about a group
  bool version = false;
  bool tie = false;
};

[[nodiscard]] constexpr ActionFields fields_of(Op op) {
  switch (op) {
    case Op::load:
      return {.micro_batch = true};
    case Op::agree_norm:
      return {.stage = false};
    case Op::tie:
      return {.stage = false, .tie = true};
    case Op::step:
      return {.version = true};
    case Op::reduce:
    case Op::report_loss:
      return {};
    default:
      return {.micro_batch = true, .version = true};
  }
}

/// What both forms can carry: a word of visible ASCII without "#".
[[nodiscard]] bool is_schedule_name(std::string_view name);

/// Whether people may write the op: transfers and slots are lowering's.
[[nodiscard]] constexpr bool is_schedule_level(Op op) { return !is_transfer(op) && op != Op::release; }

/// The version an action reads where none is written: a step's is its group's number, all others' is 0.
[[nodiscard]] constexpr Version default_version(const Action& action) {
  if (!fields_of(action.op).version) return Version{};
  return action.op == Op::step ? Version{action.group.value} : Version{0};
}

/// What is wrong with the values of a complete action, naming the field; both empty when nothing is.
struct FieldError {
  std::string field;
  std::string what;
};
[[nodiscard]] FieldError find_field_error(const ProgramHeader& header, int micro_batches,
                                          const Action& action);

}  // namespace stagecraft
