#include "engine/device/streams.h"

#include "base/error.h"
#include "engine/device/nccl_backend.h"

namespace stagecraft {

std::shared_ptr<DeviceStreams> make_device_streams(int) {
  throw InputError("this stagecraft was built without CUDA: it computes on the CPU");
}

std::shared_ptr<NcclBackend> make_nccl_lines(std::shared_ptr<DeviceStreams>) {
  throw InputError("this stagecraft was built without CUDA and NCCL: use comms.backend mpi or local");
}

}  // namespace stagecraft
