#pragma once

// What steps must promise of their arguments where LibTorch's kernels look at none of it. Backwards that read
// saved statistics, or write where saved indices say, read and write outside of their tensors when these do
// not fit. A graph file is anybody's, so it is refused instead.
//
// Rules are about the types that the graph declares: a run compares each result with its own before the next step
// reads it (replay.h). They are of two kinds: for arguments of a name in whatever operator, and for operators.

#include "models/captured/format/step_view.h"

#include <string>

namespace stagecraft::captured {

/// Empty where all is well, else what is wrong, as a sentence names it: "save_mean is f32[7], expected [8]".
[[nodiscard]] std::string broken_rule(const StepView& view);

}  // namespace stagecraft::captured
