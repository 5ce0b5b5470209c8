#pragma once

// The partition of a chain into stages of several widths with the smallest steady-state bottleneck: an exact
// dynamic program over (layers, devices) as PipeDream's (SOSP'19, 3.1), but over the cluster as it is.
// Stages lie one after the other on consecutive devices, wherever machines end; what a boundary and an
// all-reduce cost follows from the devices they lie on (occupancy.h).

#include "partitioner/search/chain_costs.h"

#include <functional>
#include <optional>
#include <vector>

namespace stagecraft::planning {

struct WidthProblem {
  const ChainCosts& chain;
  const Network& network;
  const std::vector<double>& speed;  ///< per device; empty: all 1
  int devices = 1;
  int cuttable = 1;  ///< cuts lie before layers 1 to `cuttable` - 1
  int micro_batches = 1;
  std::optional<int> stages{};
  /// Whether a stage can be; empty: all can.
  std::function<bool(int first, int last, int device, int width)> possible{};
};

struct WidthPartition {
  double bottleneck = 0;  ///< seconds per micro-batch
  std::vector<int> cuts;
  std::vector<int> widths;
  bool exact = true;  ///< of all widths; otherwise of powers of two, for there are too many devices
};

/// Of equal bottlenecks the one with fewest devices in its first stage, and so on. Empty when nothing is
/// possible. Time grows with layers^2 x devices^3 up to a limit, then with layers^2 x devices x
/// log(devices)^2.
[[nodiscard]] std::optional<WidthPartition> width_partition(const WidthProblem& problem);

}  // namespace stagecraft::planning
