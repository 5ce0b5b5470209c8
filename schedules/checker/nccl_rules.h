#pragma once

#include "schedules/program/program.h"
#include "schedules/rules/transport_rules.h"

#include <vector>

namespace stagecraft {

/// NCCL's rules with the fewest channels under which all programs are proved. Throws RefusedError where there
/// are none.
[[nodiscard]] TransportRules nccl_rules_for(const std::vector<const LoweredProgram*>& programs);

}  // namespace stagecraft
