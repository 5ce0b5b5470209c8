#pragma once

// Follows the buffers of a lowered program by a plain walk along each rank's list: an account of its own, so
// that an error of lowering cannot hide in lowering's own bookkeeping.

#include "schedules/program/program.h"

#include <fmt/format.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace stagecraft {

struct SlotState {
  Tag tag;
  bool arrived = false;
};

/// What is wrong with the slots and sends of rank `r`; empty when nothing is.
[[nodiscard]] inline std::string replay_slots(const LoweredProgram& program, std::size_t r,
                                              int sends_in_flight) {
  const Placement& placement = program.placement;
  const Rank rank{r};
  std::map<Slot, SlotState> held;
  std::set<Tag> under_way;
  std::set<Tag> sent;
  std::map<std::pair<StageId, MicroBatch>, Slot> kept_input;
  const auto wrong = [&](std::size_t i, const char* why) {
    return fmt::format("rank {} [{}] {}: {}", r, i, describe_action(program.ranks[r][i]), why);
  };
  for (std::size_t i = 0; i < program.ranks[r].size(); ++i) {
    const Action& a = program.ranks[r][i];
    switch (a.op) {
      case Op::post_receive: {
        if (held.contains(a.slot)) return wrong(i, "the slot is taken");
        const SlotInfo& info = program.slots[r].at(a.slot.index());
        if (info != SlotInfo{a.tag.payload, a.tag.from, a.tag.to, a.tag.index}) {
          return wrong(i, "the slot is of another channel");
        }
        held[a.slot] = {a.tag, false};
        break;
      }
      case Op::wait_receive:
        if (!held.contains(a.slot) || held[a.slot].tag != a.tag) return wrong(i, "not posted there");
        held[a.slot].arrived = true;
        break;
      case Op::release:
        if (!held.contains(a.slot) || !held[a.slot].arrived) return wrong(i, "nothing to release");
        held.erase(a.slot);
        break;
      case Op::start_send: {
        if (!sent.insert(a.tag).second) return wrong(i, "sent twice");
        under_way.insert(a.tag);
        int same = 0;
        for (const Tag& t : under_way) {
          if (t.payload == a.tag.payload && t.from == a.tag.from && t.to == a.tag.to) ++same;
        }
        if (same > sends_in_flight) return wrong(i, "too many sends under way");
        break;
      }
      case Op::wait_send:
        if (under_way.erase(a.tag) == 0) return wrong(i, "not under way");
        break;
      default:
        break;
    }
    if (!is_compute(a.op)) continue;
    const std::pair key{a.stage, a.micro_batch};
    const bool first_half = a.op == Op::forward || a.op == Op::recompute;
    const StageId source{first_half ? a.stage.value - 1 : a.stage.value + 1};
    const bool outside = source.value < 0 || source.value >= placement.stages();
    const bool local = outside || placement.rank_of(source, a.micro_batch) == rank;
    if (local != !a.slot.valid()) return wrong(i, local ? "reads a slot for nothing" : "has no input");
    if (!local) {
      const Tag input{first_half ? Payload::activation : Payload::gradient, source, a.stage,
                      a.micro_batch.value};
      if (!held.contains(a.slot) || !held[a.slot].arrived || held[a.slot].tag != input) {
        return wrong(i, "its input is not in its slot");
      }
    }
    if (a.op == Op::forward) {
      kept_input[key] = a.slot;
    } else {
      // Zero copy: the input that the forward read is still where it was.
      const Slot slot = kept_input.at(key);
      if (slot.valid() && (!held.contains(slot) || held[slot].tag.micro_batch() != a.micro_batch)) {
        return wrong(i, "the kept input is gone");
      }
      const Tag output = Tag::activation(a.stage, a.micro_batch);
      if (a.op != Op::recompute && under_way.contains(output))
        return wrong(i, "the output is still being sent");
    }
  }
  if (!held.empty()) return fmt::format("rank {}: slots are held at the end", r);
  if (!under_way.empty()) return fmt::format("rank {}: sends are under way at the end", r);
  return "";
}

}  // namespace stagecraft
