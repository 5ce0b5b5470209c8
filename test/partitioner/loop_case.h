#pragma once

// Planning problems with several stages per rank, and many cuts of each with their price: what a plan has to be no
// worse than.

#include "partitioner/search/planner.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace stagecraft::test {

struct LoopCase {
  std::string name;
  Profile profile;
  Cluster cluster;  ///< without a cap
  PlanRequest request;
};

/// 40 to 350 layers on 4 to 16 devices: transformers, networks whose first layers keep most, and uneven ones.
[[nodiscard]] LoopCase large_case(const std::string& schedule, std::uint64_t seed);
/// 40 to 90 layers on 4 to 6 devices.
[[nodiscard]] LoopCase medium_case(const std::string& schedule, std::uint64_t seed);
/// 12 to 40 layers on 2 to 6 devices.
[[nodiscard]] LoopCase small_case(const std::string& schedule, std::uint64_t seed);

struct Sample {
  std::vector<int> cuts;
  Seconds step;
  Bytes memory;
  const char* kind;  ///< "random", "near even", "even layers", ...
};

/// Cuts at random and even ones (by layers, time, kept bytes and weights), priced without a cap.
class Samples {
 public:
  Samples(const LoopCase& one, int count, std::uint64_t seed);
  /// And cuts that need less than any of them: layers move while that helps the rank that needs most. Requires an
  /// order that does not follow the costs.
  void add_least(const LoopCase& one);
  /// The fastest that fits; null: none.
  [[nodiscard]] const Sample* best(std::optional<Bytes> cap) const;
  /// What so large a share of them fits, at least one.
  [[nodiscard]] Bytes memory_at(double share) const;
  [[nodiscard]] std::size_t size() const { return samples_.size(); }

 private:
  void add(const LoopCase& one, std::vector<int> cuts, const char* kind);

  std::vector<Sample> samples_;  // by memory
};

}  // namespace stagecraft::test
