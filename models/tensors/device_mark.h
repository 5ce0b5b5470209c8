#pragma once

// A mark in what a device has been told to do, put on the stream that ATen's operators run on.

#include <c10/core/Device.h>
#include <c10/core/Event.h>

namespace stagecraft {

/// Marks what was launched until now. `timed`: for c10::Event::elapsedTime. Not for the CPU, which has done
/// already what it was told.
[[nodiscard]] c10::Event mark_of(c10::Device device, bool timed = false);

}  // namespace stagecraft
