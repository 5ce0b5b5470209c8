#pragma once

// Whole runs on the fake accelerator, a rank per thread, compared with the oracle there.

#include "engine/transport/direct/direct_transport.h"
#include "engine/transport/nccl/nccl_transport.h"
#include "engine/transport/staged/staged_transport.h"
#include "test/engine/case_list.h"
#include "test/engine/device_memory_hosts.h"
#include "test/engine/nccl_ranks.h"
#include "test/support/fake_accelerator.h"
#include "test/support/fake_device.h"
#include "test/support/fake_graphs.h"
#include "test/support/ranks.h"

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace stagecraft::test {

using Wrap = std::function<std::unique_ptr<Transport>(std::unique_ptr<Transport> hosts,
                                                      std::shared_ptr<FakeDevice> device)>;

/// Ranks with a device each; `wrap` makes the transport that knows of it.
inline void run_on_devices(int world, const Wrap& wrap, const std::function<void(Transport&)>& body) {
  const auto fabric = std::make_shared<FakeFabric>();
  const TransportOptions options{.timeout = Seconds{60}};
  run_ranks(world, options, [&](Transport& hosts) {
    const auto seed = static_cast<std::uint64_t>(hosts.rank().value) + 1;
    const auto device = std::make_shared<FakeDevice>(fabric, seed);
    const auto transport = wrap(std::make_unique<DeviceMemoryHosts>(hosts, seed), device);
    const GoesOn host_goes_on(*device, *transport);
    try {
      body(*transport);
      transport->barrier();
    } catch (const std::exception& error) {
      transport->fail(error.what());
      throw;
    }
  });
}

inline Wrap over_nccl(const Setting& setting) {
  return [needs = nccl_needs(setting)](std::unique_ptr<Transport> hosts, std::shared_ptr<FakeDevice> device) {
    return std::make_unique<transport::NcclTransport>(std::move(hosts), device, device, needs);
  };
}

inline std::unique_ptr<Transport> staged(std::unique_ptr<Transport> hosts,
                                         std::shared_ptr<FakeDevice> device) {
  return std::make_unique<transport::StagedTransport>(std::move(hosts), std::move(device));
}

inline std::unique_ptr<Transport> direct(std::unique_ptr<Transport> hosts,
                                         std::shared_ptr<FakeDevice> device) {
  return std::make_unique<transport::DirectTransport>(std::move(hosts), std::move(device));
}

/// The first difference from the oracle on any rank. `see` is shown each rank's outcome, on its thread.
inline std::string run_and_compare(const Setting& setting, const Wrap& wrap,
                                   const std::function<void(Rank, const Outcome&)>& see = nullptr) {
  const OracleResult& oracle = oracle_of(setting);
  std::vector<Outcome> outcomes(static_cast<std::size_t>(setting.placement.world()));
  run_on_devices(setting.placement.world(), wrap, [&](Transport& transport) {
    Outcome& outcome = outcomes[transport.rank().index()] = run_rank(setting, transport);
    if (see) see(transport.rank(), outcome);
  });
  return difference(outcomes, oracle);
}

inline PipelineCase on_device(PipelineCase pipeline) {
  pipeline.device = fake_accelerator();
  return pipeline;
}

/// On the fake accelerator, with its recordings.
inline Setting with_graphs(const PipelineCase& pipeline) {
  Setting setting(on_device(pipeline));
  setting.options.graphs = fake_graphs();
  return setting;
}

}  // namespace stagecraft::test
