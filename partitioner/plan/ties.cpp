#include "partitioner/plan/ties.h"

namespace stagecraft {

std::vector<std::vector<StageId>> tie_holders(const std::vector<TiedWeight>& ties,
                                              const std::vector<int>& cuts) {
  std::vector<std::vector<StageId>> all;
  for (const TiedWeight& tie : ties) {
    std::vector<StageId>& holders = all.emplace_back();
    for (const int layer : tie.layers) holders.push_back(stage_of_layer(cuts, layer));
  }
  return all;
}

void set_ties(Plan& plan, const std::vector<TiedWeight>& ties) {
  plan.ties = tie_holders(ties, plan.cuts());
  if (!plan.costs) return;
  plan.costs->ties.clear();
  for (const TiedWeight& tie : ties) plan.costs->ties.push_back(tie.bytes);
}

}  // namespace stagecraft
