#pragma once

// Costs of a chain's stages with their memory, each made once, when it is first asked for.

#include "partitioner/plan/profile.h"

#include <memory>
#include <vector>

namespace stagecraft::planning {

/// Not for two threads at once.
class StageTable {
 public:
  /// Keeps a reference to `measurement`.
  StageTable(const Measurement& measurement, double optimizer_bytes_per_parameter_byte)
      : measurement_(measurement),
        factor_(optimizer_bytes_per_parameter_byte),
        by_first_(measurement.layers.size()) {}

  /// Of layers [first, last). The reference stays valid.
  [[nodiscard]] const StageCosts& at(int first, int last) {
    std::vector<std::unique_ptr<StageCosts>>& row = by_first_[to_size(first)];
    if (row.empty()) row.resize(measurement_.layers.size() - to_size(first));
    std::unique_ptr<StageCosts>& known = row[to_size(last - first - 1)];
    if (!known) known = std::make_unique<StageCosts>(stage_costs(measurement_, first, last, factor_));
    return *known;
  }

 private:
  const Measurement& measurement_;
  double factor_;
  std::vector<std::vector<std::unique_ptr<StageCosts>>> by_first_;
};

}  // namespace stagecraft::planning
