#pragma once

// Bytes that tensors of one device take, from a moment on: what this thread asks of the counting allocator for the
// CPU's, what this process asks of LibTorch's allocator for a device's. Requested bytes, in both.

#include "models/tensors/counting_allocator.h"

#include <c10/core/Device.h>

#include <optional>

namespace stagecraft {

/// Requires the counting allocator to be installed. Of a device's, one meter at a time: a peak is the allocator's.
class MemoryMeter {
 public:
  explicit MemoryMeter(c10::Device device);

  /// Of what was asked for since the meter was made; on a device less what was given back of earlier tensors.
  [[nodiscard]] Bytes live() const;
  [[nodiscard]] Bytes peak() const;
  void reset_peak();  ///< to what is live now

 private:
  c10::Device device_;
  Bytes before_;  ///< live on the device when the meter was made
  MemoryAccount account_;
  std::optional<ChargeTo> charge_;
};

}  // namespace stagecraft
