#include "profiler/tied_weights.h"

#include <c10/util/accumulate.h>

namespace stagecraft {

std::vector<TiedWeight> tied_weights(const Model& model) {
  std::vector<TiedWeight> ties;
  for (const Tie& tie : model.ties) {
    TiedWeight& tied = ties.emplace_back();
    tied.name = tie.name;
    for (const Tie::Holder& holder : tie.holders) tied.layers.push_back(holder.layer);
    const auto [layer, parameter] = tie.holders.front();
    const ParameterSpec spec =
        model.layers[static_cast<std::size_t>(layer)]->parameters()[static_cast<std::size_t>(parameter)];
    tied.bytes = Bytes{c10::multiply_integers(spec.shape) *
                       static_cast<std::int64_t>(c10::elementSize(model.precision.full))};
  }
  return ties;
}

}  // namespace stagecraft
