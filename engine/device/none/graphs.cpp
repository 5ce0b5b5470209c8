#include "stagecraft/engine/device/graphs.h"

#include "stagecraft/base/error.h"

namespace stagecraft {

std::shared_ptr<DeviceGraphs> make_device_graphs(int) {
  throw InputError("this stagecraft was built without CUDA: it computes on the CPU");
}

}  // namespace stagecraft
