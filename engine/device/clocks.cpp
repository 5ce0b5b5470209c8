#include "engine/device/clocks.h"

#include <dlfcn.h>

namespace stagecraft {
namespace {

// As nvml.h declares them, which comes with drivers and not with every toolkit.
using Device = struct NvmlDevice*;
using Init = int();
using ByAddress = int(const char* address, Device* device);
using ReadClock = int(Device device, int type, unsigned int* megahertz);
constexpr int kSuccess = 0, kMultiprocessors = 1;

template <class Function>
Function* find(void* library, const char* name) {
  return reinterpret_cast<Function*>(::dlsym(library, name));
}

/// Null where one is missing.
struct Nvml {
  Nvml() {
    void* const library = ::dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return;
    auto* const init = find<Init>(library, "nvmlInit_v2");
    by_address = find<ByAddress>(library, "nvmlDeviceGetHandleByPciBusId_v2");
    clock = find<ReadClock>(library, "nvmlDeviceGetClockInfo");
    most_clock = find<ReadClock>(library, "nvmlDeviceGetMaxClockInfo");
    usable = init != nullptr && by_address != nullptr && clock != nullptr && most_clock != nullptr &&
             init() == kSuccess;
  }
  ByAddress* by_address = nullptr;
  ReadClock* clock = nullptr;
  ReadClock* most_clock = nullptr;
  bool usable = false;
};

}  // namespace

std::optional<DeviceClock> device_clock(const std::string& pci_address) {
  static const Nvml nvml;
  Device device = nullptr;
  if (!nvml.usable || nvml.by_address(pci_address.c_str(), &device) != kSuccess) return std::nullopt;
  unsigned int now = 0, most = 0;
  if (nvml.clock(device, kMultiprocessors, &now) != kSuccess) return std::nullopt;
  if (nvml.most_clock(device, kMultiprocessors, &most) != kSuccess) return std::nullopt;
  return DeviceClock{now, most};
}

}  // namespace stagecraft
