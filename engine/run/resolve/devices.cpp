#include "engine/run/resolve/devices.h"

#include "engine/device/operators.h"
#include "engine/device/peak_flops.h"
#include "engine/run/resolve/launcher.h"
#include "engine/transport/factory.h"

#include <ATen/Context.h>
#include <ATen/cpu/Utils.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <set>
#include <string_view>
#include <unistd.h>

namespace stagecraft {
namespace {

std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "";
}

/// NCCL takes one rank per device.
bool every_rank_has_its_own(Transport& hosts, at::Device device) {
  const std::vector<Accelerator> devices = accelerators().devices;
  const std::size_t mine = static_cast<std::uint8_t>(device.index());  // without one: behind them all
  const std::string address = mine < devices.size() ? devices[mine].pci_address : "";
  // Processes that NCCL is told to take for hosts of their own.
  const char* const host = std::getenv("NCCL_HOSTID");
  const std::vector<std::string> all =
      hosts.all_gather_text(fmt::format("{} {}", host != nullptr ? host : host_name(), address));
  return std::set<std::string>(all.begin(), all.end()).size() == all.size();
}

}  // namespace

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

TransportOptions transport_options(const RunConfig& config) {
  const CommsConfig& comms = config.comms;
  return {.timeout = Seconds{comms.timeout_s},
          .synchronous_sends = comms.synchronous_sends,
          .start_up_timeout = Seconds{comms.start_up_timeout_s},
          .save_timeout = Seconds{comms.save_timeout_s},
          .timeout_steps = comms.timeout_steps,
          .timeout_pause = Seconds{comms.timeout_pause_s}};
}

std::unique_ptr<Transport> transport_for(std::unique_ptr<Transport> hosts, const RunSetup& setup,
                                         at::Device device) {
  return transport_for(std::move(hosts), setup.config().comms, device, [&] { return setup.nccl_wiring(); });
}

std::unique_ptr<Transport> transport_for(std::unique_ptr<Transport> hosts, const CommsConfig& comms,
                                         at::Device device,
                                         const std::function<transport::NcclWiring()>& wiring) {
  if (device.is_cpu() || hosts->world() == 1) return hosts;
  const bool asked = comms.backend == Backend::nccl;
  const bool possible = (asked || (comms.backend == Backend::automatic && hosts->name() != "local")) &&
                        every_rank_has_its_own(*hosts, device);
  if (asked && !possible) {
    throw InputError(
        "comms.backend is \"nccl\", and NCCL takes one rank per GPU: here ranks share one. Start as many "
        "ranks per machine as it has GPUs, or use \"auto\" or \"mpi\"");
  }
  if (!possible) return make_transport_over_hosts(std::move(hosts), device.index());
  return make_nccl_transport(std::move(hosts), device.index(), wiring());
}

MeasuredLinks measured_links(const RunConfig& config, Transport& hosts, at::Device device,
                             const std::vector<RankPair>& pairs) {
  if (device.is_cpu()) return {hosts.name(), probe_links(hosts, device, pairs)};
  const std::unique_ptr<Transport> made =
      transport_for(hosts.meeting_place(transport_options(config)), config.comms, device,
                    [&] { return probe_wiring(pairs); });
  made->waits().enter(Phase::start_up);
  std::vector<ProbedLink> links = probe_links(*made, device, pairs);
  made->barrier();
  return {made->name(), std::move(links)};
}

namespace {
LinkMeasurement over(std::string transport, const ProbedLink& probed) {
  return {std::move(transport), probed, probed.latency_spread, probed.bytes_per_second_spread};
}
}  // namespace

LinkMeasurement measured_link(const RunConfig& config, Transport& hosts, at::Device device) {
  const MeasuredLinks measured = measured_links(config, hosts, device, {{Rank{0}, Rank{1}}});
  return over(measured.transport, measured.links.front());
}

LinkMeasurement measured_local_link(const RunConfig& config) {
  if (config.device == DeviceKind::cpu) return over("local", probe_local_link());
  return over("local, staged", probe_local_link({device_of(config, 0), device_of(config, 1)},
                                                [](std::unique_ptr<Transport> hosts, at::Device device) {
                                                  return make_transport_over_hosts(std::move(hosts),
                                                                                   device.index());
                                                }));
}

}  // namespace stagecraft
