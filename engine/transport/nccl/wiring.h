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

/// `rules`: those that the programs are proved under (schedules/checker/nccl_rules.h). `norms`: groups_of.
[[nodiscard]] NcclWiring nccl_wiring(const std::vector<const LoweredProgram*>& programs,
                                     const TransportRules& rules, SumOrder order, bool norms = false);

}  // namespace stagecraft::transport
