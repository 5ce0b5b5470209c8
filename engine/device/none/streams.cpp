#include "engine/device/streams.h"

#include "engine/device/nccl_lines.h"
#include "schedules/base/error.h"

namespace stagecraft {

std::shared_ptr<DeviceStreams> make_device_streams(int) {
  throw InputError("this stagecraft was built without CUDA: it computes on the CPU");
}

std::shared_ptr<NcclLines> make_nccl_lines(std::shared_ptr<DeviceStreams>) {
  throw InputError("this stagecraft was built without CUDA and NCCL: use comms.backend mpi or local");
}

}  // namespace stagecraft
