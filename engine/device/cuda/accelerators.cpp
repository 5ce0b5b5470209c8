#include "engine/device/accelerators.h"

#include "engine/device/cuda/check.h"
#include "engine/device/cuda/queues.h"
#include "engine/device/driver.h"

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <nccl.h>

#include <array>
#include <cctype>
#include <cstdlib>
#include <fstream>
#include <sstream>

namespace stagecraft {
namespace {

/// CUDA packs 13.0 as 13000.
std::string cuda_version(int packed) { return fmt::format("{}.{}", packed / 1000, packed % 1000 / 10); }
/// NCCL packs 2.28.9 as 22809.
std::string nccl_version(int packed) {
  return fmt::format("{}.{}.{}", packed / 10000, packed % 10000 / 100, packed % 100);
}

std::string pci_address_of(int device) {
  std::array<char, 32> address{};
  if (cudaDeviceGetPCIBusId(address.data(), static_cast<int>(address.size()), device) != cudaSuccess)
    return "";
  return address.data();
}

int numa_node_of(std::string pci_address) {
  for (char& c : pci_address) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  int node = -1;
  std::ifstream("/sys/bus/pci/devices/" + pci_address + "/numa_node") >> node;
  return node;
}

std::vector<int> peers_of(int device, int count) {
  std::vector<int> peers;
  for (int other = 0; other < count; ++other) {
    int can = 0;
    if (other != device && cudaDeviceCanAccessPeer(&can, device, other) == cudaSuccess && can != 0) {
      peers.push_back(other);
    }
  }
  return peers;
}

}  // namespace

void prepare_environment() {
  ask_for_queues();
  // NCCL's threads run on the cores near their GPU, also where the rank is bound to a single one.
  ::setenv("NCCL_IGNORE_CPU_AFFINITY", "1", /*overwrite=*/0);
}

DeviceMemory device_memory(int index) {
  int before = 0;
  cuda_check(cudaGetDevice(&before), "cudaGetDevice");
  cuda_check(cudaSetDevice(index), "cudaSetDevice");
  std::size_t available = 0;
  std::size_t total = 0;
  cuda_check(cudaMemGetInfo(&available, &total), "cudaMemGetInfo");
  cuda_check(cudaSetDevice(before), "cudaSetDevice");
  return {Bytes{static_cast<std::int64_t>(total)}, Bytes{static_cast<std::int64_t>(available)}};
}

AcceleratorReport accelerators() {
  prepare_environment();
  AcceleratorReport report;
  report.compiled_in = true;
  report.nccl_header = nccl_version(NCCL_VERSION_CODE);
  int version = 0;
  if (ncclGetVersion(&version) == ncclSuccess) report.nccl_runtime = nccl_version(version);
  if (cudaRuntimeGetVersion(&version) == cudaSuccess) report.cuda_runtime = cuda_version(version);
  if (cudaDriverGetVersion(&version) == cudaSuccess && version > 0)
    report.cuda_driver = cuda_version(version);
  std::ostringstream module;
  module << std::ifstream("/proc/driver/nvidia/version").rdbuf();
  report.driver = driver_release(module.str());
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) {
    report.remark = driver_remark(report.driver, CUDART_VERSION / 1000);
    if (report.remark.empty()) {
      report.remark = report.cuda_driver.empty() ? "no NVIDIA driver" : cudaGetErrorString(error);
    }
    return report;
  }
  for (int device = 0; device < count; ++device) {
    cudaDeviceProp properties{};
    if (cudaGetDeviceProperties(&properties, device) != cudaSuccess) continue;
    const std::string pci_address = pci_address_of(device);
    report.devices.push_back({properties.name, Bytes{static_cast<std::int64_t>(properties.totalGlobalMem)},
                              fmt::format("{}.{}", properties.major, properties.minor), pci_address,
                              numa_node_of(pci_address), peers_of(device, count)});
  }
  if (report.devices.empty()) report.remark = "the driver lists no device";
  return report;
}

}  // namespace stagecraft
