#include "partitioner/plan/ties.h"

#include <cstddef>

namespace stagecraft {

void set_ties(Plan& plan, const std::vector<TiedWeight>& ties) {
  plan.ties.clear();
  if (plan.costs) plan.costs->ties.clear();
  for (const TiedWeight& tie : ties) {
    std::vector<StageId>& holders = plan.ties.emplace_back();
    std::size_t stage = 0;
    for (const int layer : tie.layers) {
      while (stage + 1 < plan.stages.size() && plan.stages[stage].last_layer <= layer) ++stage;
      holders.emplace_back(stage);
    }
    if (plan.costs) plan.costs->ties.push_back(tie.bytes);
  }
}

}  // namespace stagecraft
