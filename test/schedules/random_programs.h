#pragma once

// Random placements and requests for the property tests of this folder.

#include "schedules/schedule.h"

#include <rapidcheck.h>

#include <algorithm>
#include <string>
#include <vector>

namespace stagecraft {

/// Ranks 0, 1, ... in stage order, each under one stage.
[[nodiscard]] inline Placement placement_of_widths(const std::vector<int>& widths) {
  Placement placement;
  int next = 0;
  for (const int width : widths) {
    auto& replicas = placement.ranks.emplace_back();
    for (int r = 0; r < width; ++r) replicas.emplace_back(next++);
  }
  return placement;
}

/// Up to `most_stages` stages of up to 3 replicas, one stage a rank.
[[nodiscard]] inline Placement random_widths(int most_stages) {
  return placement_of_widths(*rc::gen::resize(
      most_stages, rc::gen::nonEmpty(rc::gen::container<std::vector<int>>(rc::gen::inRange(1, 4)))));
}

/// Up to 6 stages of one width up to 2, dealt in any way to the ranks: some hold several stages, neighbours
/// or not.
[[nodiscard]] inline Placement random_shared() {
  const int stages = *rc::gen::inRange(1, 7);
  const int width = *rc::gen::inRange(1, 3);
  const int teams = *rc::gen::inRange(1, stages + 1);
  Placement placement;
  for (int s = 0; s < stages; ++s) {
    const int team = s < teams ? s : *rc::gen::inRange(0, teams);  // each team gets one stage at least
    auto& replicas = placement.ranks.emplace_back();
    for (int r = 0; r < width; ++r) replicas.emplace_back(team * width + r);
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

/// Any schedule, over any placement of the above.
[[nodiscard]] inline RandomProgram random_program() {
  RandomProgram random;
  const Schedule schedule = *rc::gen::elementOf(schedules());
  random.schedule = schedule.name;
  random.request.placement = *rc::gen::arbitrary<bool>() ? random_widths(5) : random_shared();
  random.request.group_sizes =
      schedule.synchronous ? std::vector<int>{*rc::gen::inRange(1, 14)} : random_groups(6);
  random.request.vertical_sync = !schedule.synchronous && *rc::gen::arbitrary<bool>();
  random.request.clip = schedule.synchronous && *rc::gen::arbitrary<bool>();
  random.program = schedule.generate(random.request);
  return random;
}

}  // namespace stagecraft
