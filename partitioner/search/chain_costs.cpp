#include "partitioner/search/chain_costs.h"

namespace stagecraft::planning {

ChainCosts::ChainCosts(const Measurement& measurement) : loss_report_(measurement.loss_report()) {
  until_.reserve(measurement.layers.size() + 1);
  until_.emplace_back();
  boundaries_.reserve(measurement.layers.size() + 1);
  boundaries_.push_back(measurement.input);
  for (const LayerProfile& layer : measurement.layers) {
    Until sum = until_.back();
    sum.forward += layer.forward.median.value;
    if (!layer.frozen.value_or(false)) sum.trained_forward += layer.forward.median.value;
    sum.backward_input += layer.backward_input.median.value;
    sum.backward_weight += layer.backward_weight.median.value;
    sum.step += layer.step.median.value;
    sum.parameters += layer.parameters;
    until_.push_back(sum);
    boundaries_.push_back(layer.output);
  }
}

StageCosts ChainCosts::stage(int first, int last) const {
  StageCosts costs;
  costs.forward = Seconds{forward(first, last)};
  costs.backward_input = Seconds{backward_input(first, last)};
  costs.backward_weight = Seconds{backward_weight(first, last)};
  costs.step = Seconds{step(first, last)};
  costs.parameters = parameters(first, last);
  costs.input = boundary(first);
  costs.output = boundary(last);
  return costs;
}

}  // namespace stagecraft::planning
