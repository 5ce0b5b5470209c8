#pragma once

// The programs that checker tests go over: every registered schedule, stage counts, placements, micro-batch
// counts (fewer than stages included) and groups.

#include "schedules/generators/registry.h"
#include "schedules/generators/schedule.h"
#include "schedules/lowering/lowering.h"

#include <fmt/format.h>

#include <string>
#include <vector>

namespace stagecraft::test {

struct GridProgram {
  std::string name;
  const Schedule* schedule = nullptr;  ///< null: validation
  ScheduleRequest request;
  LoweredProgram program;
};

/// Stages by their ranks: {{0}, {1, 2}} is one rank, then two replicas.
inline Placement placement(const std::vector<std::vector<int>>& stages) {
  Placement made;
  for (const auto& ranks : stages) {
    auto& replicas = made.ranks.emplace_back();
    for (const int rank : ranks) replicas.emplace_back(rank);
  }
  return made;
}

inline std::string name_of(const Schedule& schedule, const ScheduleRequest& request) {
  std::string name = fmt::format("{}{}{}", schedule.name, request.vertical_sync ? " vertical_sync" : "",
                                 request.clip ? " clip" : "");
  for (const auto& replicas : request.placement.ranks) {
    name += " [";
    for (const Rank rank : replicas) name += fmt::format(" {}", rank.value);
    name += " ]";
  }
  for (const int size : request.group_sizes) name += fmt::format(" {}", size);
  return name;
}

inline std::vector<Placement> straight_placements() {
  std::vector<Placement> all;
  for (int p = 1; p <= 4; ++p) all.push_back(Placement::straight(p));
  return all;
}

/// Loops and Vs of several chunks per rank, with replicas too, and replicas of unequal widths.
inline std::vector<Placement> odd_placements() {
  return {Placement::looped(2, 2),
          Placement::looped(3, 2),
          Placement::looped(2, 3),
          Placement::looped(1, 2),
          placement({{0, 1}, {2, 3}, {0, 1}, {2, 3}}),
          Placement::zigzag(1, 2),
          Placement::zigzag(2, 2),
          Placement::zigzag(3, 2),
          placement({{0, 1}, {2, 3}, {2, 3}, {0, 1}}),
          placement({{0, 1}, {2}}),
          placement({{0}, {1, 2}}),
          placement({{0, 1}, {2, 3, 4}}),
          placement({{0, 1}})};
}

/// Whether the schedule is for such a placement and such groups.
inline bool serves(const Schedule& schedule, const ScheduleRequest& request) {
  try {
    (void)schedule.generate(request);
    return true;
  } catch (const InputError&) {
    return false;
  }
}

/// Every backward in two halves, the weight half put off behind the stage's next input half.
inline ScheduleProgram split(ScheduleProgram program) {
  for (auto& list : program.ranks) {
    std::vector<Action> halves;
    std::vector<Action> put_off;
    for (Action action : list) {
      const bool backward = action.op == Op::backward;
      if (backward) action.op = Op::backward_input;
      const bool work = is_compute(action.op) || action.op == Op::load;
      if (work) halves.push_back(action);
      std::erase_if(put_off, [&](const Action& weight) {
        if (work && !(backward && weight.stage == action.stage)) return false;
        halves.push_back(weight);
        return true;
      });
      if (!work) halves.push_back(action);
      if (!backward) continue;
      action.op = Op::backward_weight;
      put_off.push_back(action);
    }
    list = halves;
  }
  return program;
}

/// A recomputation before every backward of stages with an even number.
inline ScheduleProgram recomputed(ScheduleProgram program) {
  for (auto& list : program.ranks) {
    std::vector<Action> longer;
    for (const Action& action : list) {
      const bool backward = action.op == Op::backward || action.op == Op::backward_input;
      if (backward && action.stage.value % 2 == 0) {
        longer.push_back(action);
        longer.back().op = Op::recompute;
      }
      longer.push_back(action);
    }
    list = longer;
  }
  return program;
}

inline std::vector<GridProgram> program_grid(const std::vector<Placement>& placements) {
  std::vector<GridProgram> grid;
  const auto add = [&](const Schedule& schedule, const ScheduleRequest& request) {
    if (!serves(schedule, request)) return;
    const ScheduleProgram program = schedule.generate(request);
    const std::string name = name_of(schedule, request);
    grid.push_back({name, &schedule, request, lower(program)});
    if (request.group_sizes[0] != 3) return;
    if (const int stages = request.placement.stages(); stages > 1) {
      ScheduleRequest frozen = request;
      frozen.gradient_from = StageId{(stages + 1) / 2};
      const ScheduleProgram its = schedule.generate(frozen);
      grid.push_back({name + " frozen", &schedule, frozen, lower(its)});
      grid.push_back({name + " frozen, both", &schedule, frozen, lower(recomputed(split(its)))});
    }
    grid.push_back({name + " recomputed", &schedule, request, lower(recomputed(program))});
    if (split(program) == program) return;  // split by itself
    grid.push_back({name + " split", &schedule, request, lower(split(program), {.extra_slots = 0})});
    grid.push_back(
        {name + " both", &schedule, request, lower(recomputed(split(program)), {.extra_slots = 2})});
  };
  for (const Placement& where : placements) {
    for (const Schedule& schedule : schedules()) {
      for (const bool variant : {false, true}) {
        for (const int m : {1, 2, 3, 5}) {
          if (schedule.synchronous) {
            add(schedule, {where, {m}, false, variant});
            if (schedule.takes_warmup_extra)
              add(schedule, {.placement = where, .group_sizes = {m}, .warmup_extra = variant ? 1 : 3});
            continue;
          }
          if (variant && !schedule.takes_vertical_sync) continue;
          add(schedule, {where, {m}, variant, false});
          add(schedule, {where, {m, m, m}, variant, false});
          add(schedule, {where, {m, m + 1, 1}, variant, false});
        }
      }
    }
    for (const int m : {1, 4}) {
      grid.push_back({"validation", nullptr, {where, {m}}, lower(validation_program(where, m))});
    }
  }
  return grid;
}

}  // namespace stagecraft::test
