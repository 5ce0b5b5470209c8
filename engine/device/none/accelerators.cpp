#include "engine/device/accelerators.h"

#include "base/error.h"

namespace stagecraft {

void prepare_environment() {}

DeviceMemory device_memory(int /*index*/) { throw InputError("this build is without CUDA"); }

AcceleratorReport accelerators() {
  AcceleratorReport report;
  report.remark = "built without CUDA and NCCL";
  return report;
}

}  // namespace stagecraft
