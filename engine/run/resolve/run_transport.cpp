#include "engine/run/resolve/run_transport.h"

#include "engine/device/accelerators.h"
#include "engine/run/resolve/devices.h"
#include "engine/transport/factory.h"

#include <fmt/format.h>

#include <cstdlib>
#include <set>
#include <unistd.h>
#include <utility>

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

[[noreturn]] void refuse_to_carry() {
  throw InputError(
      "torchrun started these processes without Python, so they have its store, which is for what is small, "
      "and no Gloo: NCCL has to carry the tensors (\"device\": \"cuda\", comms.backend \"auto\" or \"nccl\", "
      "a GPU per rank). Else start them as `torchrun ... -m stagecraft ...`, or with mpirun");
}

LinkMeasurement over(std::string transport, const ProbedLink& probed) {
  return {std::move(transport), probed, probed.latency_spread, probed.bytes_per_second_spread};
}

}  // namespace

TransportOptions transport_options(const RunConfig& config) {
  const CommsConfig& comms = config.comms;
  return {.timeout = Seconds{comms.timeout_s},
          .synchronous_sends = comms.synchronous_sends,
          .start_up_timeout = Seconds{comms.start_up_timeout_s},
          .save_timeout = Seconds{comms.save_timeout_s},
          .timeout_steps = comms.timeout_steps,
          .timeout_pause = Seconds{comms.timeout_pause_s}};
}

void require_carried(const RunConfig& config, const Transport& hosts) {
  const Backend backend = config.comms.backend;
  const bool by_nccl =
      config.device == DeviceKind::cuda && (backend == Backend::automatic || backend == Backend::nccl);
  if (!hosts.carries_tensors() && hosts.world() > 1 && !by_nccl) refuse_to_carry();
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
  if (!possible && !hosts->carries_tensors()) refuse_to_carry();
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
