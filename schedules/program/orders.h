#pragma once

// Orders: what every rank computes in a synchronous step, and nothing else.

#include "schedules/program/action.h"

#include <vector>

namespace stagecraft {

/// One forward, backward, backward_input, backward_weight or recompute.
struct Compute {
  Op op = Op::forward;
  StageId stage{};
  MicroBatch micro_batch{};
  bool operator==(const Compute&) const = default;
};

/// What one rank computes, in order.
using Order = std::vector<Compute>;
using Orders = std::vector<Order>;  ///< [rank]

}  // namespace stagecraft
