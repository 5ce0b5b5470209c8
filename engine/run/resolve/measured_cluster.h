#pragma once

// The cluster file of the machines that a profile is measured on (`profile --links --cluster-file`): levels by
// where the ranks are, links as measured, memory as there is.

#include "base/launch.h"
#include "engine/config/config.h"
#include "engine/run/resolve/training_inputs.h"
#include "engine/transport/transport.h"
#include "partitioner/plan/cluster.h"
#include "partitioner/plan/profile.h"

#include <c10/core/Device.h>

#include <vector>

namespace stagecraft {

/// Where a rank is, as its launcher says.
struct RankSeat {
  int on_machine = 0;     ///< which of its machine's ranks it is
  int machine_ranks = 1;  ///< as many are there
};

/// Ranks per machine. A cluster file has the same number in each, and ranks one machine after the other: throws
/// InputError for others, with what to start them with.
[[nodiscard]] int ranks_per_machine(const std::vector<RankSeat>& seats);

/// Collective, of all ranks that measure; takes some seconds. Between machines two pairs at once show whether
/// they share a link. Throws InputError likewise, on all ranks.
[[nodiscard]] Cluster measured_cluster(const RunConfig& config, const TrainingInputs& inputs,
                                       const LaunchInfo& launch, Transport& hosts, at::Device device);

/// Of one process: as many ranks as the machine has GPUs, or cores for their threads, and the link between two.
[[nodiscard]] Cluster measured_cluster(const RunConfig& config, const TrainingInputs& inputs, int threads,
                                       const Link& link);

}  // namespace stagecraft
