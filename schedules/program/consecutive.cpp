#include "schedules/program/consecutive.h"

#include "base/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace stagecraft {
namespace {

/// How far a step's numbers are behind those of the first.
struct Behind {
  std::int32_t micro_batches = 0;
  std::int32_t groups = 0;  ///< and so many versions
};

/// The slots of `added` among `slots`, which get those they lack.
std::vector<Slot> merge(std::vector<SlotInfo>& slots, const std::vector<SlotInfo>& added) {
  std::vector<Slot> places;
  std::vector<bool> taken(slots.size(), false);
  for (const SlotInfo& slot : added) {
    std::size_t place = 0;
    while (place < slots.size() && (taken[place] || slots[place] != slot)) ++place;
    if (place == slots.size()) {
      slots.push_back(slot);
      taken.push_back(false);
    }
    taken[place] = true;
    places.emplace_back(place);
  }
  return places;
}

template <class Id>
void move_on(Id& id, std::int32_t by) {
  if (id.valid()) id.value += by;
}

Action moved(Action action, Behind behind, const ProgramHeader& header, const std::vector<Slot>& places) {
  move_on(action.micro_batch, behind.micro_batches);
  move_on(action.group, behind.groups);
  // No step writes another version of frozen weights.
  if (header.has_backward(action.stage)) move_on(action.version, behind.groups);
  if (is_transfer(action.op)) {
    const bool of_group = action.tag.is_loss() || action.tag.is_reduction();
    action.tag.number += of_group ? behind.groups : behind.micro_batches;
  }
  if (action.slot.valid()) action.slot = places[action.slot.index()];
  return action;
}

}  // namespace

bool can_be_followed(const Placement& placement, int micro_batches) {
  return std::ranges::all_of(placement.ranks, [&](const std::vector<Rank>& replicas) {
    return micro_batches % static_cast<int>(replicas.size()) == 0;
  });
}

LoweredProgram consecutive(const std::vector<const LoweredProgram*>& steps) {
  STAGECRAFT_CHECK(!steps.empty(), "there is a first step");
  LoweredProgram all = *steps.front();
  for (std::size_t n = 1; n < steps.size(); ++n) {
    const LoweredProgram& step = *steps[n];
    STAGECRAFT_CHECK(step.kind == all.kind && step.placement == all.placement &&
                         step.gradient_from == all.gradient_from && can_be_followed(*steps[n - 1]),
                     "consecutive steps are of one pipeline, whose replicas take equally many micro-batches");
    const Behind behind{all.micro_batches(), all.groups()};
    for (std::size_t r = 0; r < all.ranks.size(); ++r) {
      const std::vector<Slot> places = merge(all.slots[r], step.slots[r]);
      all.ranks[r].reserve(all.ranks[r].size() + step.ranks[r].size());
      for (const Action& action : step.ranks[r]) all.ranks[r].push_back(moved(action, behind, step, places));
    }
    all.group_sizes.insert(all.group_sizes.end(), step.group_sizes.begin(), step.group_sizes.end());
    all.slots_per_channel = std::max(all.slots_per_channel, step.slots_per_channel);
  }
  return all;
}

LoweredProgram repeated(const LoweredProgram& step, int times) {
  if (times > 1 && !can_be_followed(step)) {
    throw InputError(
        fmt::format("{} micro-batches do not divide among a stage's replicas, so ranks wait for each other "
                    "behind each step; "
                    "expected one step, whose time is that of all",
                    step.micro_batches()));
  }
  std::int64_t actions = 0;
  for (const std::vector<Action>& list : step.ranks) actions += static_cast<std::int64_t>(list.size());
  if (actions * times > kMaxActions) {
    throw InputError(fmt::format("{} steps of {} actions are {}; expected {} actions at most", times, actions,
                                 actions * times, kMaxActions));
  }
  return consecutive(std::vector<const LoweredProgram*>(static_cast<std::size_t>(times), &step));
}

}  // namespace stagecraft
