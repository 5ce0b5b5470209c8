#include "engine/transport/nccl/channels.h"

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
