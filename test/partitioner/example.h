#pragma once

// The profile and the cluster that tests of the planner begin with.

#include "partitioner/plan/cluster.h"
#include "partitioner/plan/profile.h"

#include <optional>

namespace stagecraft::test {

/// Ten layers and a loss of a small GPT, at micro-batches of 4 and 8 samples.
[[nodiscard]] inline Profile example() {
  return read_profile(STAGECRAFT_TEST_DATA "/profiles/gpt_10_layers.json");
}

[[nodiscard]] inline Cluster machine(int devices, std::optional<Bytes> memory = std::nullopt) {
  Cluster cluster = flat_cluster("machine", devices, Link{Seconds{1e-5}, 4e9});
  cluster.memory = memory;
  return cluster;
}

}  // namespace stagecraft::test
