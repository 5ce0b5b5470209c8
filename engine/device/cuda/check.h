#pragma once

// The one wrapper that CUDA calls go through.

#include "base/error.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>

namespace stagecraft {

inline void cuda_check(cudaError_t error, const char* call) {
  STAGECRAFT_CHECK(error == cudaSuccess, fmt::format("{}: {}", call, cudaGetErrorString(error)));
}

}  // namespace stagecraft
