#include "engine/transport/nccl/channels.h"

#include <set>

namespace stagecraft::transport {
namespace {

constexpr int kPhases = 2;  // of a sum: parts are scattered, sums gathered

void add_transfers(const LoweredProgram& program, std::set<NcclChannel>& channels) {
  for (std::size_t r = 0; r < program.ranks.size(); ++r) {
    for (const Action& action : program.ranks[r]) {
      if (action.op != Op::start_send || action.tag.payload == Payload::loss) continue;
      const Rank to = program.placement.rank_of(action.tag.to, action.tag.micro_batch);
      channels.insert(channel_of(Rank{r}, to, action.tag));
    }
  }
}

void add_sums(const LoweredProgram& program, std::set<NcclChannel>& channels) {
  if (program.kind != SegmentKind::train) return;
  for (int s = 0; s < program.placement.stages(); ++s) {
    const std::vector<Rank>& replicas = program.placement.ranks[static_cast<std::size_t>(s)];
    for (const Rank from : replicas) {
      for (const Rank to : replicas) {
        if (from == to) continue;
        for (std::int32_t phase = 0; phase < kPhases; ++phase) {
          channels.insert({from, to, Payload::gradient, StageId{s}, phase});
        }
      }
    }
  }
}

}  // namespace

NcclChannel channel_of(Rank from, Rank to, const Tag& tag) {
  if (tag.from == tag.to) return {from, to, tag.payload, tag.from, tag.index};
  return {from, to, tag.payload, StageId{}, 0};
}

std::vector<NcclChannel> channels_of(const std::vector<const LoweredProgram*>& programs) {
  std::set<NcclChannel> channels;
  for (const LoweredProgram* program : programs) {
    add_transfers(*program, channels);
    add_sums(*program, channels);
  }
  return {channels.begin(), channels.end()};
}

}  // namespace stagecraft::transport
