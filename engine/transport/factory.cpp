#include "engine/transport/factory.h"

#include "engine/transport/direct/direct_transport.h"
#include "engine/transport/local/local_transport.h"
#include "engine/transport/nccl/nccl_transport.h"
#include "engine/transport/staged/staged_transport.h"

#include <utility>

namespace stagecraft {

LocalRanks make_local_ranks(int world, const TransportOptions& options) {
  const auto hub = std::make_shared<transport::LocalHub>(world, options);
  LocalRanks ranks;
  for (int rank = 0; rank < world; ++rank) {
    ranks.transports.push_back(std::make_unique<transport::LocalTransport>(hub, Rank{rank}));
  }
  ranks.fail = [hub](Rank failed, const std::string& reason) { hub->fail(failed, reason); };
  return ranks;
}

std::vector<std::unique_ptr<Transport>> make_local_transports(int world, const TransportOptions& options) {
  return make_local_ranks(world, options).transports;
}

std::unique_ptr<Transport> make_nccl_transport(std::unique_ptr<Transport> hosts, int index,
                                               const transport::NcclWiring& wiring) {
  const std::shared_ptr<DeviceStreams> streams = make_device_streams(index);
  return std::make_unique<transport::NcclTransport>(std::move(hosts), streams, make_nccl_lines(streams),
                                                    wiring);
}

std::unique_ptr<Transport> make_transport_over_hosts(std::unique_ptr<Transport> hosts,
                                                     std::shared_ptr<DeviceStreams> streams) {
  if (hosts->takes_device_memory()) {
    return std::make_unique<transport::DirectTransport>(std::move(hosts), std::move(streams));
  }
  return std::make_unique<transport::StagedTransport>(std::move(hosts), std::move(streams));
}

std::unique_ptr<Transport> make_transport_over_hosts(std::unique_ptr<Transport> hosts, int index) {
  return make_transport_over_hosts(std::move(hosts), make_device_streams(index));
}

}  // namespace stagecraft
