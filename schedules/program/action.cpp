#include "stagecraft/schedules/program/action.h"

#include <fmt/format.h>

#include <algorithm>

namespace stagecraft {
namespace {

constexpr std::array kLetters{
    std::pair{'L', Op::load},           std::pair{'F', Op::forward},
    std::pair{'I', Op::backward_input}, std::pair{'W', Op::backward_weight},
    std::pair{'B', Op::backward},       std::pair{'R', Op::recompute},
    std::pair{'A', Op::reduce},         std::pair{'N', Op::agree_norm},
    std::pair{'S', Op::step},           std::pair{'P', Op::report_loss},
};

std::string on_stage(const Action& a) {
  return a.stage.valid() ? fmt::format(" on stage {}", a.stage.value) : std::string();
}

std::string versioned(const Action& a) {
  return a.version.value > 0 ? fmt::format(" with version {}", a.version.value) : std::string();
}

std::string in_slot(const Action& a, const char* preposition) {
  return a.slot.valid() ? fmt::format(" {} slot {}", preposition, a.slot.value) : std::string();
}

}  // namespace

char letter_of(Op op) {
  const auto found =
      std::find_if(kLetters.begin(), kLetters.end(), [&](auto& entry) { return entry.second == op; });
  return found == kLetters.end() ? '?' : found->first;
}

std::optional<Op> op_of(char letter) {
  const auto found =
      std::find_if(kLetters.begin(), kLetters.end(), [&](auto& entry) { return entry.first == letter; });
  return found == kLetters.end() ? std::nullopt : std::optional(found->second);
}

std::string describe_tag(const Tag& tag) {
  const std::string index = tag.index > 0 ? fmt::format(" ({})", tag.index) : std::string();
  if (tag.payload == Payload::loss) {
    return fmt::format("loss of group {}{} from stage {} to stage {}", tag.micro_batch.value, index,
                       tag.from.value, tag.to.value);
  }
  if (tag.from == tag.to) {
    return fmt::format("gradients of group {} of stage {}", tag.micro_batch.value, tag.from.value);
  }
  return fmt::format("{} {}{} from stage {} to stage {}", enum_name(tag.payload), tag.micro_batch.value,
                     index, tag.from.value, tag.to.value);
}

std::string describe_action(const Action& a) {
  switch (a.op) {
    case Op::load:
      return fmt::format("load of micro-batch {}{}", a.micro_batch.value, on_stage(a));
    case Op::forward:
      return fmt::format("forward of micro-batch {}{}{}", a.micro_batch.value, on_stage(a), versioned(a));
    case Op::backward_input:
      return fmt::format("input gradient of micro-batch {}{}{}", a.micro_batch.value, on_stage(a),
                         versioned(a));
    case Op::backward_weight:
      return fmt::format("weight gradient of micro-batch {}{}{}", a.micro_batch.value, on_stage(a),
                         versioned(a));
    case Op::backward:
      return fmt::format("backward of micro-batch {}{}{}", a.micro_batch.value, on_stage(a), versioned(a));
    case Op::recompute:
      return fmt::format("recompute of micro-batch {}{}{}", a.micro_batch.value, on_stage(a), versioned(a));
    case Op::reduce:
      return fmt::format("reduction of group {}{}", a.group.value, on_stage(a));
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
