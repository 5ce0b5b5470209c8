#pragma once

// The one way in which a host waits for its device. What the device does may be behind a transfer, so that it
// never ends when another rank has died: nobody may block in CUDA for it.

#include <c10/core/Event.h>

#include <functional>

namespace stagecraft {

/// Polls until what `event` marks is over, and calls `meanwhile` again and again, which may throw
/// (Transport::progress).
void await_device(const c10::Event& event, const std::function<void()>& meanwhile);

}  // namespace stagecraft
