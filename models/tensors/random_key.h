#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace stagecraft {

/// Names a stream of random numbers. Never derived from ranks, threads or time.
struct RandomKey {
  std::uint64_t seed = 0;
  std::uint64_t layer = 0;        ///< index in the whole model
  std::uint64_t step = 0;         ///< optimizer step of the run
  std::uint64_t micro_batch = 0;  ///< within the step
  /// On a device, for work that is recorded once and repeated: one number (kLong) there, step in its upper
  /// and micro-batch in its lower 32 bits, read in place of the two above. Undefined: they are meant.
  at::Tensor on_device{};
};

}  // namespace stagecraft
