#pragma once

// Synthesis over the schedules there are.

#include "schedules/synthesis/synthesis.h"

namespace stagecraft {

/// synthesize(), with every synchronous schedule's programs on the request's placement as its library: those
/// that take the placement, with as many forwards more before the first backward as help, where they take
/// them. Equal pipelines meet only where no order matters: the search goes over one of them, as in
/// program_by_time(), and what it found for all is judged beside the library. Throws what synthesize() throws.
[[nodiscard]] Synthesis synthesize_over_schedules(SynthesisRequest request);

}  // namespace stagecraft
