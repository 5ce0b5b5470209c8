#include "partitioner/stage_memory.h"

#include "partitioner/stage_walk.h"

#include <algorithm>

namespace stagecraft {

StageMemory::StageMemory(const StageCosts& costs, bool last_stage)
    : fixed(costs.parameters + costs.optimizer_state + costs.buffers),
      version(costs.parameters),
      micro_batch(costs.kept_for_input + costs.input + (costs.output_kept ? costs.output : Bytes{})),
      unweighted(costs.kept_for_weight),
      forward_peak(costs.forward_peak + costs.input),
      backward_peak(std::min(costs.backward_peak, costs.input_half_peak()) +
                    (last_stage ? Bytes{} : costs.output)) {}

Bytes StageMemory::peak(const Residency& residency) const {
  const Bytes forward = micro_batch * (residency.in_flight - 1) + forward_peak;
  const Bytes backward = micro_batch * residency.in_flight + backward_peak;
  return fixed + version * residency.versions +
         std::max({forward, backward, unweighted * residency.unweighted});
}

StageMemoryTable::StageMemoryTable(const Measurement& measurement,
                                   double optimizer_bytes_per_parameter_byte) {
  const int layers = static_cast<int>(measurement.layers.size());
  by_first_.resize(measurement.layers.size());
  for (int first = 0; first < layers; ++first) {
    std::vector<StageMemory>& row = by_first_[static_cast<std::size_t>(first)];
    row.reserve(static_cast<std::size_t>(layers - first));
    StageWalk walk(measurement, first, optimizer_bytes_per_parameter_byte);
    while (walk.last() < layers) {
      walk.extend();
      row.emplace_back(walk.costs(), walk.last() == layers);
    }
  }
}

}  // namespace stagecraft
