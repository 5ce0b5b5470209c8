#pragma once

// What accelerators this build and this machine have. One header, two back ends (cuda/, none/), chosen by
// CMake.

#include "base/ids.h"

#include <string>
#include <vector>

namespace stagecraft {

struct Accelerator {
  std::string name;
  Bytes memory;
  std::string compute_capability;  ///< "9.0"
  std::string pci_address;         ///< "0000:65:00.0"
  int numa_node = -1;              ///< of the machine's memory that is near; -1: not told
  std::vector<int> peers;          ///< devices whose memory it reads and writes directly
};

struct AcceleratorReport {
  bool compiled_in = false;
  std::string cuda_runtime;  ///< "13.0", empty without CUDA
  std::string cuda_driver;   ///< the newest CUDA the installed driver can run; empty: no driver
  std::string driver;        ///< its release, "580.65.06"; empty: no driver
  std::string nccl_header;   ///< compiled against
  std::string nccl_runtime;  ///< loaded
  std::vector<Accelerator> devices;
  std::string remark;  ///< why there are no devices, for people; empty when there are
};

/// What CUDA and NCCL read from the environment when they start, where the user has not set it. An MPI that
/// knows of GPUs may start CUDA: to be called before MPI starts. Does nothing in a build without CUDA.
void prepare_environment();

/// Never throws: a machine without a driver is an answer, not an error.
[[nodiscard]] AcceleratorReport accelerators();

struct DeviceMemory {
  Bytes total, available;
};
/// Of device `index`, now. Makes CUDA's context there, if this process has none yet. Throws InputError where the
/// build is without CUDA, InternalError for what CUDA reports.
[[nodiscard]] DeviceMemory device_memory(int index);

}  // namespace stagecraft
