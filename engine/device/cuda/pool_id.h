#pragma once

#include "engine/device/graphs.h"

#include <c10/core/CachingDeviceAllocator.h>

namespace stagecraft {

/// A pool's name with LibTorch's allocator, whose table of pools hashes the first number alone unless it is 0, and
/// never ends to grow where many hash alike. LibTorch counts its own pools from 1.
[[nodiscard]] inline c10::MempoolId_t pool_id(DeviceGraphs::Pool pool) {
  constexpr c10::CaptureId_t kOurs = c10::CaptureId_t{0x53746167} << 32U;
  return {kOurs + static_cast<c10::CaptureId_t>(pool), 0};
}

}  // namespace stagecraft
