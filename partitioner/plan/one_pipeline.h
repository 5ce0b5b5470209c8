#pragma once

// Other frameworks replicate whole pipelines. A plan whose stages all have as many replicas is that many equal
// pipelines.

#include "base/error.h"
#include "partitioner/plan/plan.h"

namespace stagecraft {

/// The stages of one of them, on ranks that are numbered anew in the order of the stages. All else is the plan's, its
/// micro-batches per step too. Throws InputError at `place` for stages with unequal replicas.
[[nodiscard]] Plan one_pipeline(Plan plan, const InputPlace& place);

}  // namespace stagecraft
