#include "engine/transport/factory.h"

#include "engine/transport/local/local_transport.h"
#include "engine/transport/mpi/mpi_transport.h"
#include "engine/transport/nccl/nccl_transport.h"

#include <utility>

namespace stagecraft {

std::vector<std::unique_ptr<Transport>> make_local_transports(int world, const TransportOptions& options) {
  const auto hub = std::make_shared<transport::LocalHub>(world, options);
  std::vector<std::unique_ptr<Transport>> transports;
  for (int rank = 0; rank < world; ++rank) {
    transports.push_back(std::make_unique<transport::LocalTransport>(hub, Rank{rank}));
  }
  return transports;
}

std::unique_ptr<Transport> make_mpi_transport(MpiSession& session, const TransportOptions& options) {
  return std::make_unique<transport::MpiTransport>(session, options);
}

std::unique_ptr<Transport> make_nccl_transport(std::unique_ptr<Transport> hosts, int device,
                                               const std::vector<transport::NcclChannel>& channels,
                                               const TransportOptions& options) {
  return std::make_unique<transport::NcclTransport>(std::move(hosts), make_nccl_device(device), channels,
                                                    options);
}

}  // namespace stagecraft
