#include "schedules/costs/traffic.h"

#include "base/error.h"

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

Bytes payload_bytes(const CostTable& costs, Payload payload, StageId from, StageId to) {
  if (payload == Payload::activation && to.value > from.value + 1) return costs.skip(from, to);
  if (payload == Payload::gradient && from.value > to.value + 1) return costs.skip(to, from);
  return payload_bytes(costs, payload, to);
}

Traffic traffic(const LoweredProgram& program, const CostTable& costs) {
  STAGECRAFT_CHECK(costs.stages.size() == to_size(program.placement.stages()),
                   "a cost table of another program");
  Traffic all;
  program.each_action([&](ActionPlace, const Action& action) {
    if (action.op != Op::start_send) return;
    ++all.messages;
    all.bytes += payload_bytes(costs, action.tag.payload, action.tag.from, action.tag.to);
  });
  return all;
}

}  // namespace stagecraft
