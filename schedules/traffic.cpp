#include "schedules/traffic.h"

#include "schedules/base/error.h"

namespace stagecraft {
namespace {

Bytes bytes_of(const CostTable& costs, const Tag& tag) {
  switch (tag.payload) {
    case Payload::activation:
      return costs.stages[tag.to.index()].input;
    case Payload::gradient:
      return costs.stages[tag.to.index()].output;
    case Payload::loss:
      break;
  }
  return costs.loss;
}

}  // namespace

Traffic traffic(const LoweredProgram& program, const CostTable& costs) {
  STAGECRAFT_CHECK(costs.stages.size() == static_cast<std::size_t>(program.placement.stages()),
                   "a cost table of another program");
  Traffic all;
  for (const auto& list : program.ranks) {
    for (const Action& action : list) {
      if (action.op != Op::start_send) continue;
      ++all.messages;
      all.bytes += bytes_of(costs, action.tag);
    }
  }
  return all;
}

}  // namespace stagecraft
