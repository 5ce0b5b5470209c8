#pragma once

// Recordings on the fake accelerator (test/support/fake_accelerator.h). As CUDA's, and stricter:
//   - work that is recorded is not done: tensors made in it hold NaN (integers: a number far out of range)
//     until the recording is launched;
//   - a recording holds addresses. A pool's memory is handed out again as soon as it comes back, so a launch
//     that finds something else at its addresses computes with that;
//   - reading a number, copying to or from the host, and waiting fail while something is recorded.
// A launch does the recorded operators again, in order.

#include "engine/device/graphs.h"

#include <memory>

namespace stagecraft::test {

[[nodiscard]] std::shared_ptr<DeviceGraphs> fake_graphs();

/// Bytes that all pools of fake_graphs() have taken, and not given back since they were made.
[[nodiscard]] std::int64_t pool_bytes();

}  // namespace stagecraft::test
