#pragma once

// The one place that chooses a transport. Those of processes come from their session (process_session.h).

#include "engine/device/streams.h"
#include "engine/transport/nccl/wiring.h"
#include "engine/transport/transport.h"

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace stagecraft {

/// What `world` threads of this process talk over.
struct LocalRanks {
  std::vector<std::unique_ptr<Transport>> transports;  ///< one per rank, then used by its own thread only
  /// Tells all ranks that one failed, as Transport::fail does, for a rank that has no transport any more, or
  /// whose thread never began. Any thread may call it; never throws.
  std::function<void(Rank failed, const std::string& reason)> fail;
};
[[nodiscard]] LocalRanks make_local_ranks(int world, const TransportOptions& options);

/// Their transports alone.
[[nodiscard]] std::vector<std::unique_ptr<Transport>> make_local_transports(int world,
                                                                            const TransportOptions& options);

/// `hosts` for what is small, NCCL on the process's device `index` for boundaries and sums. Collective, with
/// the wiring of all programs of the run. Throws InputError where the build is without CUDA.
[[nodiscard]] std::unique_ptr<Transport> make_nccl_transport(std::unique_ptr<Transport> hosts, int index,
                                                             const transport::NcclWiring& wiring);

/// Tensors of a device over `hosts`: from its memory into the other device's where `hosts` takes that,
/// through page-locked memory of the host otherwise.
[[nodiscard]] std::unique_ptr<Transport> make_transport_over_hosts(std::unique_ptr<Transport> hosts,
                                                                   std::shared_ptr<DeviceStreams> streams);
/// The same for the process's device `index`. Throws as above.
[[nodiscard]] std::unique_ptr<Transport> make_transport_over_hosts(std::unique_ptr<Transport> hosts,
                                                                   int index);

}  // namespace stagecraft
