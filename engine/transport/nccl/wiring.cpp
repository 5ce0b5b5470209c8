#include "engine/transport/nccl/wiring.h"

namespace stagecraft::transport {

NcclWiring nccl_wiring(const std::vector<const LoweredProgram*>& programs, SumOrder order, bool squares) {
  const TransportRules rules = nccl_rules_for(programs);
  return {rules, channels_of(programs, rules), groups_of(programs, order, squares), order};
}

}  // namespace stagecraft::transport
