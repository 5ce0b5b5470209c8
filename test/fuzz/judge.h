#pragma once

// What is done with every program that a reader has let through: whatever a file says, the rest of the
// library must neither crash nor hang nor throw anything but its refusals.

#include "schedules/program/program.h"

#include <cstddef>
#include <cstdint>

namespace stagecraft::fuzz {

/// Ends the process, which is how a fuzz target reports.
void require(bool holds, const char* what);

/// A number of the input's own, to choose with: the same input is always treated alike.
[[nodiscard]] std::size_t choice_of(const std::uint8_t* data, std::size_t size);

/// Lowers and checks it, when it is small: the fuzzer looks for slips, not for what is merely large.
void judge(const ScheduleProgram& program);
void judge(const LoweredProgram& program);

}  // namespace stagecraft::fuzz
