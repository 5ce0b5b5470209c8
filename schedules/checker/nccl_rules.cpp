#include "schedules/checker/nccl_rules.h"

#include "schedules/checker/checker.h"

#include <algorithm>

namespace stagecraft {

TransportRules nccl_rules_for(const std::vector<const LoweredProgram*>& programs) {
  using Channels = TransportRules::Channels;
  const auto accepted = [&](const TransportRules& rules) {
    return std::all_of(programs.begin(), programs.end(), [&](const LoweredProgram* program) {
      return check(*program, nullptr, std::nullopt, rules).accepted();
    });
  };
  const TransportRules few = TransportRules::nccl(Channels::payload);
  if (accepted(few)) return few;
  const TransportRules rules = TransportRules::nccl(Channels::boundary);
  for (const LoweredProgram* program : programs) (void)prove(*program, nullptr, std::nullopt, rules);
  return rules;
}

}  // namespace stagecraft
