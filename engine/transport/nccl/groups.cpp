#include "stagecraft/engine/transport/nccl/groups.h"

#include <set>

namespace stagecraft::transport {

std::vector<NcclGroup> groups_of(const std::vector<const LoweredProgram*>& programs, SumOrder order) {
  std::set<NcclGroup> groups;
  for (const LoweredProgram* program : programs) {
    if (program->kind != SegmentKind::train) continue;
    for (int s = 0; s < program->placement.stages(); ++s) {
      const std::vector<Rank>& replicas = program->placement.ranks[static_cast<std::size_t>(s)];
      if (replicas.size() < 2) continue;
      groups.insert({StageId{s}, replicas});
      for (std::size_t r = 1; r < replicas.size() && by_chain(order, replicas.size()); ++r) {
        groups.insert({StageId{s}, {replicas[r - 1], replicas[r]}});
      }
    }
  }
  return {groups.begin(), groups.end()};
}

}  // namespace stagecraft::transport
