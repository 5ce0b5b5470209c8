#include "partitioner/plan/skips.h"

#include "base/error.h"

namespace stagecraft {

void set_skips(Plan& plan, const std::vector<SkipCosts>& links) {
  plan.skips.clear();
  if (plan.costs) plan.costs->skips.clear();
  for (const SkipCosts& link : links) {
    STAGECRAFT_CHECK(link.to.index() < plan.stages.size(), "links of another plan");
    const bool is_skip = link.to.value > link.from.value + 1;
    if (is_skip) plan.skips.push_back({link.from, link.to});
    if (!plan.costs) continue;
    if (is_skip) {
      plan.costs->skips.push_back(link);
    } else {
      plan.costs->stages[link.from.index()].output = link.bytes;
      plan.costs->stages[link.to.index()].input = link.bytes;
    }
  }
}

}  // namespace stagecraft
