#pragma once

// The profile of a pipeline that is not made: what `profile` measures, of a program's own batch.

#include "engine/run/resolve/setup.h"
#include "models/data/given.h"
#include "partitioner/plan/profile.h"

namespace stagecraft {

/// `config` as for a Session. Throws InputError, and RefusedError where the model does not fit into memory.
[[nodiscard]] Profile measured(const Json& config, const GivenTensors& batch);

/// What a pipeline of `config` would work on, its batch readable in `held`, which the inputs own.
[[nodiscard]] TrainingInputs given_inputs(const RunConfig& config, const GivenTensors& batch,
                                          GivenBatches*& held);

}  // namespace stagecraft
