#include "stagecraft/engine/device/accelerators.h"

namespace stagecraft {

AcceleratorReport accelerators() {
  AcceleratorReport report;
  report.remark = "built without CUDA and NCCL";
  return report;
}

}  // namespace stagecraft
