#include "stagecraft/engine/device/accelerators.h"

namespace stagecraft {

void prepare_environment() {}

AcceleratorReport accelerators() {
  AcceleratorReport report;
  report.remark = "built without CUDA and NCCL";
  return report;
}

}  // namespace stagecraft
