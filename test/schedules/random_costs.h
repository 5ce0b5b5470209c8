#pragma once

// Random problems for synthesis: uneven stages on a chain of ranks, links that take time, sizes in the
// proportions of a transformer's. The same everywhere for the same seed.

#include "schedules/checker/checker.h"
#include "schedules/costs/costs.h"
#include "schedules/generators/registry.h"
#include "schedules/generators/schedule.h"
#include "schedules/lowering/lowering.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>

namespace stagecraft::test {

class RandomCosts {
 public:
  explicit RandomCosts(std::uint64_t seed) : bits_(seed) {}

  int between(int low, int high) {
    return low + static_cast<int>(bits_() % static_cast<std::uint64_t>(high - low + 1));
  }
  double between(double low, double high) {
    return low + (high - low) * static_cast<double>(bits_() >> 11U) * 0x1p-53;
  }
  bool coin() { return bits_() % 2 == 0; }

  /// `links`: a transfer takes up to a quarter of a forward; otherwise nothing.
  CostTable table(int stages, int ranks, bool links) {
    CostTable costs;
    const bool output_kept = coin();
    const int width = between(10, 40);
    for (int s = 0; s < stages; ++s) {
      StageCosts stage;
      stage.forward = Seconds{between(0.5, 1.5)};
      stage.backward_input = stage.forward * between(0.7, 1.3);
      stage.backward_weight = stage.forward * between(0.5, 1.2);
      stage.step = Seconds{between(0.0, 0.2)};
      stage.parameters = Bytes{between(10, 60)};
      stage.optimizer_state = stage.parameters;
      stage.input = Bytes{width};
      stage.output = Bytes{s + 1 < stages ? width : 0};
      stage.targets = Bytes{s + 1 < stages ? 0 : 4};
      stage.kept_for_input = Bytes{between(100, 400)};
      stage.kept_for_weight = Bytes{stage.kept_for_input.value * between(30, 80) / 100};
      stage.output_kept = output_kept && s + 1 < stages;
      stage.forward_peak = stage.kept_for_input + stage.output + Bytes{between(0, 30)};
      stage.unkept_forward_peak = stage.forward_peak - Bytes{stage.kept_for_input.value / 2};
      stage.backward_peak = Bytes{width + between(0, 60)};
      costs.stages.push_back(stage);
    }
    costs.network.levels = {
        {std::max(ranks, 1), links ? Link{Seconds{between(0.0, 0.05)}, width / between(0.01, 0.2)}
                                   : Link{Seconds{0}, std::numeric_limits<double>::infinity()}}};
    return costs;
  }

 private:
  std::mt19937_64 bits_;
};

/// The most that any rank needs under 1F1B.
inline Bytes peak_of_1f1b(const Placement& placement, int micro_batches, const CostTable& costs) {
  const auto program = find_schedule("1f1b").generate(
      {.placement = placement, .group_sizes = {micro_batches}, .costs = &costs});
  Bytes peak;
  for (const MemoryProof& rank : prove(lower(program), &costs).memory) peak = std::max(peak, rank.peak);
  return peak;
}

}  // namespace stagecraft::test
