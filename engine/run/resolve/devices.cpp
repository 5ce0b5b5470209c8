#include "engine/run/resolve/devices.h"

#include "engine/device/operators.h"
#include "engine/device/peak_flops.h"
#include "engine/run/resolve/launcher.h"

#include <ATen/Context.h>
#include <ATen/cpu/Utils.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>

namespace stagecraft {

void check_device(const RunConfig& config, const AcceleratorReport& report, const std::string& file) {
  if (config.device == DeviceKind::cpu) return;
  if (!report.compiled_in) {
    throw InputError(
        {file, "/device"},
        "\"cuda\" asked for, but this build is without CUDA; build where the CUDA toolkit and NCCL "
        "are, or set device to \"cpu\"");
  }
  if (report.devices.empty()) {
    throw InputError(
        {file, "/device"},
        fmt::format("\"cuda\" asked for, but this machine has no CUDA device: {}; see `stagecraft "
                    "doctor`, or set device to \"cpu\"",
                    report.remark));
  }
}

void check_device(const RunConfig& config, const std::string& file) {
  check_device(config, config.device == DeviceKind::cpu ? AcceleratorReport{} : accelerators(), file);
  // Before any operator runs: LibTorch looks for CUDA once, and remembers that there was none.
  if (config.device != DeviceKind::cpu) load_cuda_operators();
}

std::string device_name(at::Device device) {
  if (device.is_cpu()) return "cpu";
  return accelerators().devices.at(static_cast<std::size_t>(device.index())).name;
}

std::optional<DeviceClock> clock_of(at::Device device) {
  if (device.is_cpu()) return std::nullopt;
  return device_clock(accelerators().devices.at(static_cast<std::size_t>(device.index())).pci_address);
}

at::Device prepare_device(const RunConfig& config, const std::string& file, int machine_rank) {
  check_device(config, file);
  if (config.device == DeviceKind::cpu) return at::kCPU;
  // Read when cuBLAS starts: with one workspace a stream its products are the same every time.
  if (config.cuda.deterministic) ::setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8", /*overwrite=*/0);
  at::Context& context = at::globalContext();
  context.lazyInitDevice(at::kCUDA);
  context.setAllowTF32CuBLAS(config.cuda.tf32);
  context.setAllowTF32CuDNN(config.cuda.tf32);
  // Partial sums of narrow products stay in float32, as all of them do on a CPU.
  context.setAllowFP16ReductionCuBLAS(false);
  context.setAllowBF16ReductionCuBLAS(false);
  context.setSDPUseCuDNN(false);  // its backward has no deterministic form
  context.setDeterministicAlgorithms(config.cuda.deterministic, /*warn_only=*/false);
  context.setDeterministicCuDNN(config.cuda.deterministic);
  // Deterministic runs would fill all memory before it is written, with numbers that show what nobody wrote.
  context.setDeterministicFillUninitializedMemory(false);
  return device_of(config, machine_rank);
}

at::Device device_of(const RunConfig& config, int machine_rank) {
  if (config.device == DeviceKind::cpu) return at::kCPU;
  const auto count = static_cast<int>(accelerators().devices.size());
  return {at::kCUDA, static_cast<at::DeviceIndex>(machine_rank % count)};
}

int ranks_on_card(at::Device device, int machine_ranks) {
  const auto count = static_cast<int>(accelerators().devices.size());
  return (machine_ranks - 1 - device.index()) / count + 1;
}

std::string slow_bfloat16() {
  const char* most = std::getenv("ONEDNN_MAX_CPU_ISA");
  const std::string_view allowed = most == nullptr ? "" : most;
  constexpr std::array<std::string_view, 5> kWithBfloat16{"ALL", "DEFAULT", "BF16", "FP16", "AMX"};
  const bool held_back = !allowed.empty() && std::ranges::none_of(kWithBfloat16, [&](std::string_view isa) {
    return allowed.find(isa) != std::string_view::npos;
  });
  const auto facts = at::cpu::get_cpu_capabilities();
  const bool has = std::ranges::any_of(std::array{"avx512_bf16", "amx_bf16"}, [&](const char* name) {
    const auto found = facts.find(name);
    return found != facts.end() && found->second.isBool() && found->second.toBool();
  });
  if (has && !held_back) return "";
  return fmt::format(
      "bf16 is emulated here: {}, and a step may take 10 to 60 times as long as in float32",
      has ? fmt::format("ONEDNN_MAX_CPU_ISA={} hides the processor's instructions for it", allowed)
          : "this processor has no instructions for it (AVX512-BF16 or AMX)");
}

std::optional<double> peak_flops_of(const RunConfig& config, int ranks) {
  if (config.device == DeviceKind::cpu) return std::nullopt;
  Products products = config.cuda.tf32 ? Products::tf32 : Products::float32;
  if (config.bf16.enabled || config.fp16.enabled) products = Products::narrow;
  if (config.dtype == DType::float64) products = Products::float64;
  const std::vector<Accelerator> devices = accelerators().devices;
  if (devices.empty()) return std::nullopt;
  const std::optional<double> one = peak_flops(devices.front().name, products);
  if (!one) return std::nullopt;
  // Ranks that are threads share this machine's; under a launcher machines are taken to be alike, and to have
  // a GPU per rank.
  const int used = detect_launch().launched() ? ranks : std::min(ranks, static_cast<int>(devices.size()));
  return *one * used;
}

}  // namespace stagecraft
