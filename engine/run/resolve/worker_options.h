#pragma once

// What a worker is told of the run it is part of.

#include "engine/core/worker.h"
#include "engine/run/resolve/setup.h"

#include <c10/core/Device.h>

namespace stagecraft {

/// Of a rank that computes on `device`.
[[nodiscard]] WorkerOptions worker_options(const RunSetup& setup, at::Device device);

}  // namespace stagecraft
