#include "schedules/memory/held.h"

#include "schedules/rules/reductions.h"

namespace stagecraft {

Bytes MomentDeltas::after(std::initializer_list<Moment> passed) const {
  Bytes held;
  for (const Moment moment : passed) held += (*this)[moment];
  return held;
}

MomentDeltas deltas(const StageCosts& costs, Situation here) {
  MomentDeltas deltas;
  const auto at = [&](Moment moment) {
    const bool part = moment == Moment::backward_input || moment == Moment::backward_weight;
    return to_size(part && !here.training ? Moment::forward : moment);
  };
  each_row(kMemoryTable.held, costs, here, [&](const HeldRow& row, Bytes bytes) {
    deltas.bytes[at(row.from)] += bytes.value;
    deltas.bytes[at(row.until)] -= bytes.value;
  });
  return deltas;
}

Bytes standing(const StageCosts& costs, Situation here) {
  Bytes all;
  each_row(kMemoryTable.standing, costs, here,
           [&](const StandingRow& row, Bytes bytes) { all += bytes * row.times; });
  return all;
}

Bytes sum_staging(const StageCosts& costs, int replicas) {
  return reduce_staging(costs.parameters + costs.buffers, replicas);
}

}  // namespace stagecraft
