#include "schedules/traffic.h"

#include "schedules/base/error.h"

namespace stagecraft {

Bytes payload_bytes(const CostTable& costs, Payload payload, StageId to) {
  switch (payload) {
    case Payload::activation:
      return costs.stages[to.index()].input;
    case Payload::gradient:
      return costs.stages[to.index()].output;
    case Payload::loss:
      break;
  }
  return costs.loss;
}

Rank sender_of(const Placement& placement, const Tag& tag) {
  if (tag.payload != Payload::loss) return placement.rank_of(tag.from, tag.micro_batch);
  return placement.ranks[tag.from.index()][static_cast<std::size_t>(tag.index)];
}

Rank receiver_of(const Placement& placement, const Tag& tag) {
  return tag.payload == Payload::loss ? placement.ranks[0][0] : placement.rank_of(tag.to, tag.micro_batch);
}

Traffic traffic(const LoweredProgram& program, const CostTable& costs) {
  STAGECRAFT_CHECK(costs.stages.size() == static_cast<std::size_t>(program.placement.stages()),
                   "a cost table of another program");
  Traffic all;
  for (const auto& list : program.ranks) {
    for (const Action& action : list) {
      if (action.op != Op::start_send) continue;
      ++all.messages;
      all.bytes += payload_bytes(costs, action.tag.payload, action.tag.to);
    }
  }
  return all;
}

}  // namespace stagecraft
