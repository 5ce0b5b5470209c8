#pragma once

// All that a run's programs need of NCCL.

#include "engine/transport/nccl/channels.h"
#include "engine/transport/nccl/groups.h"

#include <vector>

namespace stagecraft::transport {

struct NcclWiring {
  TransportRules rules;
  std::vector<NcclChannel> channels;
  std::vector<NcclGroup> groups;
  SumOrder order = SumOrder::ordered;
};

/// With the fewest channels. `squares`: groups_of. Throws RefusedError where the programs deadlock under NCCL's
/// rules.
[[nodiscard]] NcclWiring nccl_wiring(const std::vector<const LoweredProgram*>& programs, SumOrder order,
                                     bool squares = false);

}  // namespace stagecraft::transport
