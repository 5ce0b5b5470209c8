#include "models/tensors/device_mark.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace stagecraft {

c10::Event mark_of(c10::Device device, bool timed) {
  c10::Event event(device.type(), timed ? c10::EventFlag::BACKEND_DEFAULT : c10::EventFlag::PYTORCH_DEFAULT);
  event.record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  return event;
}

}  // namespace stagecraft
