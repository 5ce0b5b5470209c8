#include "schedules/program/timeline.h"

#include <fmt/format.h>

namespace stagecraft {
namespace {

std::string tag_subject(const Tag& tag) { return fmt::format("{} {}", enum_name(tag.payload), tag.number); }

}  // namespace

EventKind event_kind(const Event& event) {
  using enum EventKind;
  // Of the ops, in their order. A start_send's is the time it blocks until its receive is posted.
  constexpr std::array kKinds{
      other,      forward, backward_input, backward_weight, backward, recompute, collective, collective,
      collective, step,    other,          other,           wait,     wait,      wait,       other};
  static_assert(kKinds.size() == enum_names<Op>.size());
  return event.lane == Event::Lane::compute ? kKinds.at(static_cast<std::size_t>(event.action.op)) : transfer;
}

std::string event_name(const Event& event, bool with_stage) {
  const Action& action = event.action;
  const std::string stage = with_stage && action.stage.valid() ? std::to_string(action.stage.value) : "";
  const char* const under_way = event.lane == Event::Lane::compute ? "" : "sum under way: ";
  switch (action.op) {
    default:
      return fmt::format("{}{}{}", stage, letter_of(action.op), action.micro_batch.value);
    case Op::reduce:
      return fmt::format("{}reduce {}", under_way, action.group.value);
    case Op::tie:
      return fmt::format("{}tie {}{}", under_way, action.group.value,
                         action.tie.value > 0 ? fmt::format(".{}", action.tie.value) : std::string());
    case Op::agree_norm:
      return fmt::format("norm {}", action.group.value);
    case Op::step:
      return fmt::format("step {}", action.group.value);
    case Op::report_loss:
      return fmt::format("report loss {}", action.group.value);
    case Op::wait_receive:
      return fmt::format("wait: {} from stage {}", tag_subject(action.tag), action.tag.from.value);
    case Op::wait_send:
      return fmt::format("wait: {} taken by stage {}", tag_subject(action.tag), action.tag.to.value);
    case Op::start_send:
      return fmt::format("{}{} to stage {}", event.lane == Event::Lane::compute ? "wait: send " : "",
                         tag_subject(action.tag), action.tag.to.value);
    case Op::post_receive:
      return fmt::format("{} from stage {}", tag_subject(action.tag), action.tag.from.value);
    case Op::release:
      return fmt::format("release slot {}", action.slot.value);
  }
}

std::vector<bool> holds_several_stages(const Timeline& timeline) {
  std::vector<StageId> first;
  std::vector<bool> several;
  for (const Event& event : timeline.events) {
    if (!event.rank.valid()) continue;
    if (event.rank.index() >= first.size()) {
      first.resize(event.rank.index() + 1);
      several.resize(event.rank.index() + 1, false);
    }
    if (!is_compute(event.action.op)) continue;
    StageId& seen = first[event.rank.index()];
    if (!seen.valid()) seen = event.action.stage;
    if (seen != event.action.stage) several[event.rank.index()] = true;
  }
  return several;
}

}  // namespace stagecraft
