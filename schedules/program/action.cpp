#include "schedules/program/action.h"

#include "base/error.h"

#include <fmt/format.h>

#include <string_view>

namespace stagecraft {
namespace {

constexpr std::string_view kLetters = "LFIWBRATNSP";  // of the ops, in their order

std::string on_stage(const Action& a) {
  return a.stage.valid() ? fmt::format(" on stage {}", a.stage.value) : std::string();
}

std::string versioned(const Action& a) {
  return a.version.value > 0 ? fmt::format(" with version {}", a.version.value) : std::string();
}

std::string of_micro_batch(const char* work, const Action& a) {
  return fmt::format("{} of micro-batch {}{}{}", work, a.micro_batch.value, on_stage(a), versioned(a));
}

std::string in_slot(const Action& a, const char* preposition) {
  return a.slot.valid() ? fmt::format(" {} slot {}", preposition, a.slot.value) : std::string();
}

}  // namespace

char letter_of(Op op) {
  const auto at = static_cast<std::size_t>(op);
  return at < kLetters.size() ? kLetters[at] : '?';
}

std::optional<Op> op_of(char letter) {
  const std::size_t at = kLetters.find(letter);
  return at == kLetters.npos ? std::nullopt : std::optional(static_cast<Op>(at));
}

void Tag::refuse() const {
  throw InternalError(fmt::format("{} is asked for what another kind of tag has", describe_tag(*this)));
}

std::string describe_tag(const Tag& tag) {
  const std::string index = tag.index > 0 ? fmt::format(" ({})", tag.index) : std::string();
  if (tag.is_loss()) {
    return fmt::format("loss of group {}{} from stage {} to stage {}", tag.number, index, tag.from.value,
                       tag.to.value);
  }
  if (tag.is_norms()) return fmt::format("norms of the gradients of group {}", tag.number);
  if (tag.is_tied())
    return fmt::format("gradients of group {} of tied weight {}", tag.number, tag.from.value);
  if (tag.is_reduction()) {
    return fmt::format("gradients of group {} of stage {}", tag.number, tag.from.value);
  }
  return fmt::format("{} {}{} from stage {} to stage {}", enum_name(tag.payload), tag.number, index,
                     tag.from.value, tag.to.value);
}

std::string describe_action(const Action& a) {
  switch (a.op) {
    case Op::load:
      return fmt::format("load of micro-batch {}{}", a.micro_batch.value, on_stage(a));
    case Op::forward:
      return of_micro_batch("forward", a);
    case Op::backward_input:
      return of_micro_batch("input gradient", a);
    case Op::backward_weight:
      return of_micro_batch("weight gradient", a);
    case Op::backward:
      return of_micro_batch("backward", a);
    case Op::recompute:
      return of_micro_batch("recompute", a);
    case Op::reduce:
      return fmt::format("reduction of group {}{}", a.group.value, on_stage(a));
    case Op::tie:
      return fmt::format("sum of tied weight {} of group {}", a.tie.value, a.group.value);
    case Op::agree_norm:
      return fmt::format("norm agreement of group {}", a.group.value);
    case Op::step:
      return fmt::format("step of group {}{}{}", a.group.value, on_stage(a), versioned(a));
    case Op::report_loss:
      return fmt::format("loss report of group {}{}", a.group.value, on_stage(a));
    case Op::post_receive:
      return fmt::format("post receive of {}{}", describe_tag(a.tag), in_slot(a, "into"));
    case Op::wait_receive:
      return fmt::format("wait for {}{}", describe_tag(a.tag), in_slot(a, "in"));
    case Op::start_send:
      return fmt::format("start send of {}", describe_tag(a.tag));
    case Op::wait_send:
      return fmt::format("wait for the send of {}", describe_tag(a.tag));
    case Op::release:
      return fmt::format("release of slot {}", a.slot.value);
  }
  return "?";
}

}  // namespace stagecraft
