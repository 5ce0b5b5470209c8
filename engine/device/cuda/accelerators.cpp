#include "engine/device/accelerators.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <nccl.h>

namespace stagecraft {
namespace {

/// CUDA packs 13.0 as 13000.
std::string cuda_version(int packed) { return fmt::format("{}.{}", packed / 1000, packed % 1000 / 10); }
/// NCCL packs 2.28.9 as 22809.
std::string nccl_version(int packed) {
  return fmt::format("{}.{}.{}", packed / 10000, packed % 10000 / 100, packed % 100);
}

}  // namespace

AcceleratorReport accelerators() {
  AcceleratorReport report;
  report.compiled_in = true;
  report.nccl_header = nccl_version(NCCL_VERSION_CODE);
  int version = 0;
  if (ncclGetVersion(&version) == ncclSuccess) report.nccl_runtime = nccl_version(version);
  if (cudaRuntimeGetVersion(&version) == cudaSuccess) report.cuda_runtime = cuda_version(version);
  if (cudaDriverGetVersion(&version) == cudaSuccess && version > 0)
    report.cuda_driver = cuda_version(version);
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) {
    report.remark = report.cuda_driver.empty() ? "no NVIDIA driver" : cudaGetErrorString(error);
    return report;
  }
  for (int device = 0; device < count; ++device) {
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, device) != cudaSuccess) continue;
    report.devices.push_back({properties.name, Bytes{static_cast<std::int64_t>(properties.totalGlobalMem)},
                              fmt::format("{}.{}", properties.major, properties.minor)});
  }
  if (report.devices.empty()) report.remark = "the driver lists no device";
  return report;
}

}  // namespace stagecraft
