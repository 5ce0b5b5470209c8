#pragma once

// A program's simulation as something to look at: what `simulate` draws as SVG and in the terminal.

#include "cli/input_program.h"
#include "schedules/checker/checker.h"
#include "schedules/pictures/panel.h"

#include <string>

namespace stagecraft::cli {

/// Simulates `program`, the input's as lowered or several steps of that, once more and records it. Its memory is
/// drawn where the costs have bytes. `proof`: of the input.
[[nodiscard]] Panel draw(const InputProgram& input, const LoweredProgram& program, const Proof& proof);

}  // namespace stagecraft::cli
