#include "partitioner/plan/stage_memory.h"

#include "partitioner/plan/stage_walk.h"
#include "schedules/memory/held.h"

#include <algorithm>

namespace stagecraft {

namespace {

/// No more than a sum can take, and more than any device has: a million in flight of the most that a profile
/// may have do not fit 64 bits.
Bytes times(Bytes bytes, std::int64_t count) {
  constexpr auto kMost = static_cast<double>(std::int64_t{1} << 61U);
  const double product = static_cast<double>(bytes.value) * static_cast<double>(count);
  return product < kMost ? bytes * count : Bytes{static_cast<std::int64_t>(kMost)};
}

}  // namespace

StageMemory::StageMemory(const StageCosts& costs, bool last_stage, bool frozen_stage)
    : version(costs.version()),
      input(costs.input),
      forward_peak(transient(costs, Op::forward, /*recomputed=*/false) + input),
      unkept_peak(transient(costs, Op::forward, /*recomputed=*/true) + input),
      backward_peak(std::min(costs.backward_peak, costs.input_half_peak()) +
                    (last_stage ? Bytes{} : costs.output)),
      frozen(frozen_stage) {
  const Situation between{
      .training = !frozen_stage};  // the first stage's data and the last one's targets are left to the proof
  fixed = standing(costs, between) - version;
  each_row(kMemoryTable.held, costs, between, [&](const HeldRow& row, Bytes bytes) {
    if (row.until == Moment::backward_input) activations += bytes;
    if (row.until == Moment::backward_weight) unweighted += bytes;
  });
}

Bytes StageMemory::peak(const StageCounts& counts) const {
  if (frozen) return always(counts) + unkept_peak;
  // When most are in flight, by the latest forward and until the backward that follows: that one has its
  // activations, and its input is among those in flight.
  const Bytes most_in_flight =
      times(input, counts.in_flight) + std::max(unkept_peak - input, activations + backward_peak);
  // When most have their activations, likewise.
  const Bytes each = input + activations;
  const Bytes most_kept =
      std::max(times(each, counts.kept - 1) + forward_peak, times(each, counts.kept) + backward_peak);
  return always(counts) + std::max({most_in_flight, most_kept, times(unweighted, counts.unweighted)});
}

Bytes StageMemory::always(const StageCounts& counts) const {
  return fixed + times(version, frozen ? 1 : counts.versions);
}

StageMemoryTable::StageMemoryTable(const Measurement& measurement,
                                   double optimizer_bytes_per_parameter_byte) {
  const int layers = static_cast<int>(measurement.layers.size());
  by_first_.resize(measurement.layers.size());
  for (int first = 0; first < layers; ++first) {
    std::vector<StageMemory>& row = by_first_[to_size(first)];
    row.reserve(to_size(layers - first));
    StageWalk walk(measurement, first, optimizer_bytes_per_parameter_byte);
    while (walk.last() < layers) {
      walk.extend();
      row.emplace_back(walk.costs(), walk.last() == layers, walk.last() <= measurement.gradient_from());
    }
  }
}

}  // namespace stagecraft
