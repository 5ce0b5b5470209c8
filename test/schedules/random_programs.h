#pragma once

// Random placements and requests for the property tests of this folder.

#include "schedules/generators/registry.h"
#include "schedules/generators/schedule.h"

#include <rapidcheck.h>

#include <algorithm>
#include <string>
#include <vector>

namespace stagecraft {

/// Ranks 0, 1, ... in stage order, each under one stage.
[[nodiscard]] inline Placement placement_of_widths(const std::vector<int>& widths) {
  Placement placement;
  int next = 0;
  for (const int replicas : widths) {
    auto& ranks = placement.ranks.emplace_back();
    for (int r = 0; r < replicas; ++r) ranks.emplace_back(next++);
  }
  return placement;
}

/// Up to `most_stages` stages of up to 3 replicas, one stage per rank.
[[nodiscard]] inline Placement random_widths(int most_stages) {
  return placement_of_widths(*rc::gen::resize(
      most_stages, rc::gen::nonEmpty(rc::gen::container<std::vector<int>>(rc::gen::inRange(1, 4)))));
}

/// Up to 6 stages of one number of replicas up to 2, dealt in any way to the ranks: some hold several stages, neighbours
/// or not.
[[nodiscard]] inline Placement random_shared() {
  const int stages = *rc::gen::inRange(1, 7);
  const int replicas = *rc::gen::inRange(1, 3);
  const int teams = *rc::gen::inRange(1, stages + 1);
  Placement placement;
  for (int s = 0; s < stages; ++s) {
    const int team = s < teams ? s : *rc::gen::inRange(0, teams);  // each team gets one stage at least
    auto& ranks = placement.ranks.emplace_back();
    for (int r = 0; r < replicas; ++r) ranks.emplace_back(team * replicas + r);
  }
  return placement;
}

/// Of the schedule's kind: any of the above where it is made for one stage per rank, else a loop or V of up to
/// 4 ranks, of one number of replicas up to 2.
[[nodiscard]] inline Placement random_placement(const Schedule& schedule) {
  if (schedule.placement == PlacementKind::straight) {
    return *rc::gen::arbitrary<bool>() ? random_widths(5) : random_shared();
  }
  const int passes = schedule.placement == PlacementKind::v ? 2 : *rc::gen::inRange(1, 4);
  Placement placement = schedule.place(*rc::gen::inRange(1, 5), passes);
  const int replicas = *rc::gen::inRange(1, 3);
  for (auto& ranks : placement.ranks) {
    const Rank first = ranks.front();
    ranks.clear();
    for (int r = 0; r < replicas; ++r) ranks.emplace_back(first.value * replicas + r);
  }
  return placement;
}

[[nodiscard]] inline std::vector<int> random_groups(int most) {
  return *rc::gen::resize(most,
                          rc::gen::nonEmpty(rc::gen::container<std::vector<int>>(rc::gen::inRange(1, 6))));
}

struct RandomProgram {
  std::string schedule;
  ScheduleRequest request;
  ScheduleProgram program;
};

/// What any schedule may be asked for.
[[nodiscard]] inline ScheduleRequest random_request(const Schedule& schedule) {
  ScheduleRequest request;
  request.placement = random_placement(schedule);
  request.group_sizes = schedule.synchronous ? std::vector<int>{*rc::gen::inRange(1, 14)} : random_groups(6);
  request.vertical_sync = schedule.takes_vertical_sync && *rc::gen::arbitrary<bool>();
  request.clip = schedule.clips && *rc::gen::arbitrary<bool>();
  request.warmup_extra = schedule.takes_warmup_extra ? *rc::gen::inRange(0, 3) : 0;
  return request;
}

/// Of the schedules that take one stage per rank.
[[nodiscard]] inline rc::Gen<Schedule> one_stage_a_rank() {
  return rc::gen::suchThat(rc::gen::elementOf(schedules()),
                           [](const Schedule& schedule) { return schedule.placement != PlacementKind::v; });
}

/// Any schedule, over any placement it takes.
[[nodiscard]] inline RandomProgram random_program() {
  RandomProgram random;
  const Schedule schedule = *rc::gen::elementOf(schedules());
  random.schedule = schedule.name;
  random.request = random_request(schedule);
  try {
    random.program = schedule.generate(random.request);
  } catch (const InputError&) {  // 2bw, of groups shorter than what is in flight: one group serves any
    random.request.group_sizes.resize(1);
    random.program = schedule.generate(random.request);
  }
  return random;
}

}  // namespace stagecraft
