#include "schedules/lowering/lowering.h"

#include "schedules/lowering/rank_lowering.h"
#include "schedules/lowering/slot_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace stagecraft {
namespace {

/// With so many slots.
LoweredProgram lower_with(const ScheduleProgram& program, const SlotChoice& choice, const SlotCounts& counts,
                          int sends_in_flight) {
  LoweredProgram lowered{program, {}, {}, 0};
  const TransferScript& script = choice.script();
  for (std::size_t r = 0; r < script.ranks(); ++r) {
    choice.require_posts(r, counts[r]);
    LoweredRank rank = lower_rank(program.ranks[r], script.numbers(), script.transfers(r), choice.orders()[r],
                                  counts[r], sends_in_flight);
    lowered.ranks.push_back(std::move(rank.actions));
    lowered.slots.push_back(std::move(rank.slots));
    for (std::size_t c = 0; c < counts[r].size(); ++c) {
      if (script.transfers(r).channels[c].info.payload == Payload::loss) continue;
      lowered.slots_per_channel = std::max(lowered.slots_per_channel, counts[r][c]);
    }
  }
  return lowered;
}

}  // namespace

LoweredProgram lower(const ScheduleProgram& program, const LoweringOptions& options) {
  if (options.slots_per_channel < 0 || options.extra_slots < 0 || options.sends_in_flight < 1) {
    throw InputError(
        fmt::format("expected at least 0 slots and 1 send in flight, found slots_per_channel {}, "
                    "extra_slots {}, sends_in_flight {}",
                    options.slots_per_channel, options.extra_slots, options.sends_in_flight));
  }
  SlotChoice choice(program, options);
  const bool chosen = options.slots_per_channel > 0;
  if (chosen && options.slots_per_channel < choice.most_held()) {
    throw RefusedError(
        fmt::format("slots_per_channel is {}, but {}", options.slots_per_channel, choice.most_held_by()));
  }
  SlotRule rule{.uniform = options.slots_per_channel, .surplus = options.extra_slots};
  if (!chosen && options.slots_for_speed) {
    TickClock clock(choice.script());
    rule.surplus = unhurried_surplus(clock, options.extra_slots);
  }
  if (!choice.works(rule)) {
    rule.losses = choice.most_losses();
    const std::int32_t least_surplus = rule.surplus;
    if (!chosen) rule.surplus = std::max(least_surplus, choice.most_transfers());
    if (choice.works(rule)) {
      // Boundaries first: one slot of theirs is worth thousands of the losses'.
      if (!chosen) rule.surplus = choice.least(rule, &SlotRule::surplus, least_surplus);
      rule.losses = choice.least(rule, &SlotRule::losses, 0);
    }
  }
  return lower_with(program, choice, choice.counts(rule), options.sends_in_flight);
}

std::optional<int> least_slots(const ScheduleProgram& program, const LoweringOptions& options) {
  SlotChoice choice(program, options);
  const SlotRule rule{.uniform = choice.most_transfers(), .losses = choice.most_losses()};
  if (!choice.works(rule)) return std::nullopt;
  return choice.least(rule, &SlotRule::uniform, choice.most_held());
}

std::optional<LeastSlots> least_channel_slots(const ScheduleProgram& program,
                                              const LoweringOptions& options) {
  SlotChoice choice(program, options);
  const SlotRule rule{.uniform = choice.most_transfers(), .losses = choice.most_losses()};
  if (!choice.works(rule)) return std::nullopt;
  LeastSlots least = choice.least_of_each();
  least.uniform = choice.least(rule, &SlotRule::uniform, choice.most_held());
  return least;
}

}  // namespace stagecraft
