#include "stagecraft/engine/transport/nccl/wiring.h"

#include "stagecraft/base/error.h"

namespace stagecraft::transport {

NcclWiring nccl_wiring(const std::vector<const LoweredProgram*>& programs, SumOrder order) {
  for (const LoweredProgram* program : programs) {
    if (program->ties.empty() || program->kind != SegmentKind::train) continue;
    throw RefusedError(
        "NCCL does not sum the gradients of tied weights yet: leave comms.backend at \"auto\", which takes "
        "another transport for them, or capture the model with --untie");
  }
  const TransportRules rules = nccl_rules_for(programs);
  return {rules, channels_of(programs, rules), groups_of(programs, order), order};
}

}  // namespace stagecraft::transport
