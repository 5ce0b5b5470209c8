#pragma once

// How long work takes where it is carried out: on the CPU by the clock, on a device by events around it,
// since the host only launches it. A device's times are there after settle().

#include "base/ids.h"
#include "models/tensors/device_mark.h"

#include <c10/core/Device.h>
#include <c10/core/Event.h>

#include <chrono>
#include <utility>
#include <vector>

namespace stagecraft {

class DeviceStopwatch {
 public:
  explicit DeviceStopwatch(c10::Device device) : device_(device) {}

  /// Appends the time of `work` to `times`, which stays where it is until settle().
  template <class Work>
  void time(const Work& work, std::vector<Seconds>& times) {
    if (!device_.is_cpu()) {
      c10::Event begin = mark_of(device_, /*timed=*/true);
      work();
      pending_.push_back({std::move(begin), mark_of(device_, /*timed=*/true), &times});
      return;
    }
    const auto begin = std::chrono::steady_clock::now();
    work();
    times.push_back(Seconds{std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count()});
  }
  /// Waits for the device.
  void settle();

 private:
  struct Pending {
    c10::Event begin, end;
    std::vector<Seconds>* times;
  };

  c10::Device device_;
  std::vector<Pending> pending_;
};

}  // namespace stagecraft
