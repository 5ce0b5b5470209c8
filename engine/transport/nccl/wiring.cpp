#include "engine/transport/nccl/wiring.h"

namespace stagecraft::transport {

NcclWiring nccl_wiring(const std::vector<const LoweredProgram*>& programs, const TransportRules& rules,
                       SumOrder order, bool squares) {
  return {rules, channels_of(programs, rules), groups_of(programs, order, squares), order};
}

}  // namespace stagecraft::transport
