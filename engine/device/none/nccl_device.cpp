#include "engine/device/nccl_device.h"

#include "schedules/base/error.h"

namespace stagecraft {

std::unique_ptr<NcclDevice> make_nccl_device(int) {
  throw InputError(
      "this stagecraft was built without CUDA and NCCL, so it has no nccl transport: use mpi or local");
}

}  // namespace stagecraft
