#include "engine/core/await_device.h"

#include <thread>

namespace stagecraft {

void await_device(const c10::Event& event, const std::function<void()>& meanwhile) {
  constexpr int kEager = 1000;  // a step's norm is there in microseconds
  for (int turn = 0; !event.query(); ++turn) {
    if (meanwhile) meanwhile();
    if (turn >= kEager) std::this_thread::yield();
  }
}

}  // namespace stagecraft
