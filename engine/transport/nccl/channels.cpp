#include "engine/transport/nccl/channels.h"

#include "schedules/checker/checker.h"
#include "schedules/costs/traffic.h"
#include "schedules/program/placement.h"

#include <algorithm>
#include <set>

namespace stagecraft::transport {
namespace {

void add_transfers(const LoweredProgram& program, const TransportRules& rules,
                   std::set<NcclChannel>& channels) {
  for (std::size_t r = 0; r < program.ranks.size(); ++r) {
    for (const Action& action : program.ranks[r]) {
      if (action.op != Op::start_send) continue;
      channels.insert(channel_of(rules, Rank{r}, receiver_of(program.placement, action.tag), action.tag));
    }
  }
}

}  // namespace

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

NcclChannel channel_of(const TransportRules& rules, Rank from, Rank to, const Tag& tag) {
  return {from, to, channel_key(rules, tag)};
}

std::vector<NcclChannel> channels_of(const std::vector<const LoweredProgram*>& programs,
                                     const TransportRules& rules) {
  std::set<NcclChannel> channels;
  for (const LoweredProgram* program : programs) add_transfers(*program, rules, channels);
  return {channels.begin(), channels.end()};
}

}  // namespace stagecraft::transport
