#pragma once

// Schedules whose order is given, so that cuts can be searched for with it.

#include "schedules/generators/schedule.h"
#include "schedules/program/program.h"

namespace stagecraft::planning {

/// Of a step's program: its computations in its order, whatever the costs; recomputes are the request's.
[[nodiscard]] Schedule carried_schedule(const ScheduleProgram& program);

/// One micro-batch after the other, on one device per stage: what needs least memory.
[[nodiscard]] Schedule serial_schedule();

}  // namespace stagecraft::planning
