#include "engine/device/graphs.h"

#include "base/error.h"

namespace stagecraft {

std::shared_ptr<DeviceGraphs> make_device_graphs(int) {
  throw InputError("this stagecraft was built without CUDA: it computes on the CPU");
}

}  // namespace stagecraft
