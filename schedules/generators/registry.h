#pragma once

// The schedules there are: the built-in ones, and those that a program adds at its start:
//
//   add_schedule({.name = "mine", .summary = "...", .paper = "...", .build = build_mine});

#include "schedules/generators/schedule.h"

#include <string>
#include <vector>

namespace stagecraft {

[[nodiscard]] const std::vector<Schedule>& schedules();
/// Not thread-safe, and not after run_command_line() has begun. Throws InternalError: the name is taken, or it is too late.
void add_schedule(Schedule schedule);
/// Throws InputError naming the nearest when there is none of that name; `place` is where the name was read.
[[nodiscard]] const Schedule& find_schedule(const std::string& name, const InputPlace& place = {});

// One file each, or one for a family.
[[nodiscard]] Schedule fill_drain_schedule();
[[nodiscard]] Schedule one_f_one_b_schedule();
[[nodiscard]] Schedule interleaved_1f1b_schedule();
[[nodiscard]] Schedule looped_bfs_schedule();
[[nodiscard]] Schedule zb_h1_schedule();
[[nodiscard]] Schedule zb_h2_schedule();
[[nodiscard]] Schedule interleaved_zb_schedule();
[[nodiscard]] Schedule zb_v_schedule();
[[nodiscard]] Schedule v_half_schedule();
[[nodiscard]] Schedule v_min_schedule();
[[nodiscard]] Schedule auto_schedule();
[[nodiscard]] Schedule pipedream_schedule();
[[nodiscard]] Schedule two_bw_schedule();

}  // namespace stagecraft
