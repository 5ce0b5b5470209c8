#pragma once

// Other programs out of a generated one, right as well: whatever a schedule may do with backwards, on
// whatever placement it was generated for.

#include "schedules/program/program.h"

#include <cstdint>

namespace stagecraft::test {

/// Splits every backward and lets the weight halves come up to `most_behind` computations of the rank later
/// than they could, each by a number of its own that follows from `seed`. Those of a stage stay in order,
/// and all of them stand before what closes their accumulation. Halves that are split already are left alone.
void split_backwards(ScheduleProgram& program, int most_behind, std::uint64_t seed);

}  // namespace stagecraft::test
