#pragma once

// How fast a GPU is clocked, by the driver's management library (NVML), which is loaded where it is there:
// GPUs slow down when they are hot or short of power, and a measurement should tell.

#include <cstdint>
#include <optional>
#include <string>

namespace stagecraft {

struct DeviceClock {
  std::int64_t megahertz = 0;       ///< of the multiprocessors, now
  std::int64_t most_megahertz = 0;  ///< that they can have
};

/// Of the GPU at a PCI address, "0000:65:00.0". None where NVML is not there or does not tell.
[[nodiscard]] std::optional<DeviceClock> device_clock(const std::string& pci_address);

}  // namespace stagecraft
