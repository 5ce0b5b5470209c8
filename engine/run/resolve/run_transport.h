#pragma once

// What a run's tensors travel over, and how fast.

#include "engine/config/config.h"
#include "engine/run/resolve/setup.h"
#include "engine/transport/link_probe.h"
#include "engine/transport/nccl/wiring.h"
#include "engine/transport/transport.h"
#include "partitioner/plan/profile.h"

#include <c10/core/Device.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace stagecraft {

/// How long ranks wait for each other, as the config says.
[[nodiscard]] TransportOptions transport_options(const RunConfig& config);

/// Throws InputError where tensors of the config's would go over `hosts`, which carries none.
void require_carried(const RunConfig& config, const Transport& hosts);

/// What carries tensors of `device` between ranks: `hosts` itself for the CPU's; NCCL where the config asks
/// for it, or leaves it open and every rank has a device of its own; otherwise `hosts`, by way of page-locked
/// memory unless it takes the device's. Collective. Throws InputError where that carries none.
[[nodiscard]] std::unique_ptr<Transport> transport_for(std::unique_ptr<Transport> hosts,
                                                       const RunSetup& setup, at::Device device);
/// The same where what NCCL needs is not a run's: `wiring` is asked where NCCL is taken.
[[nodiscard]] std::unique_ptr<Transport> transport_for(std::unique_ptr<Transport> hosts,
                                                       const CommsConfig& comms, at::Device device,
                                                       const std::function<transport::NcclWiring()>& wiring);

/// Links that a run of `config` has between those ranks, all used at once, over its transport and between the memory
/// that its tensors lie in. Collective.
struct MeasuredLinks {
  std::string transport;
  std::vector<ProbedLink> links;  ///< by pair
};
[[nodiscard]] MeasuredLinks measured_links(const RunConfig& config, Transport& hosts, at::Device device,
                                           const std::vector<RankPair>& pairs);
/// The same between ranks 0 and 1.
[[nodiscard]] LinkMeasurement measured_link(const RunConfig& config, Transport& hosts, at::Device device);
/// The same where ranks are threads of this process. Throws InputError as prepare_device does.
[[nodiscard]] LinkMeasurement measured_local_link(const RunConfig& config);

}  // namespace stagecraft
