#include "profiler/memory_meter.h"

#include <c10/core/CachingDeviceAllocator.h>

namespace stagecraft {
namespace {

/// Of all its pools together.
c10::CachingAllocator::Stat requested(c10::Device device) {
  return c10::getDeviceAllocator(device.type())->getDeviceStats(device.index()).requested_bytes.front();
}

}  // namespace

MemoryMeter::MemoryMeter(c10::Device device) : device_(device) {
  if (device_.is_cpu()) {
    charge_.emplace(account_);
    return;
  }
  before_ = Bytes{requested(device_).current};
  reset_peak();
}

Bytes MemoryMeter::live() const {
  return device_.is_cpu() ? account_.live() : Bytes{requested(device_).current} - before_;
}

Bytes MemoryMeter::peak() const {
  return device_.is_cpu() ? account_.peak() : Bytes{requested(device_).peak} - before_;
}

void MemoryMeter::reset_peak() {
  if (device_.is_cpu()) {
    account_.reset_peak();
  } else {
    c10::getDeviceAllocator(device_.type())->resetPeakStats(device_.index());
  }
}

}  // namespace stagecraft
