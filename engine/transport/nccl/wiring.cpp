#include "engine/transport/nccl/wiring.h"

namespace stagecraft::transport {

NcclWiring nccl_wiring(const std::vector<const LoweredProgram*>& programs, const TransportRules& rules,
                       SumOrder order, bool norms) {
  return {rules, channels_of(programs, rules), groups_of(programs, order, norms), order};
}

}  // namespace stagecraft::transport
