#pragma once

// What a program sends from rank to rank.

#include "schedules/costs/costs.h"
#include "schedules/program/program.h"

#include <cstdint>

namespace stagecraft {

/// What one transfer between neighbours carries: an activation the receiving stage's input, a gradient its
/// output. `costs` has an entry for that stage, which a loss needs none of.
[[nodiscard]] Bytes payload_bytes(const CostTable& costs, Payload payload, StageId to);
/// The same between any two stages.
[[nodiscard]] Bytes payload_bytes(const CostTable& costs, Payload payload, StageId from, StageId to);

/// Transfers between ranks, losses included. Reductions over replicas and norm agreements are not: they are
/// the same under every schedule.
struct Traffic {
  std::int64_t messages = 0;
  Bytes bytes;
};

/// `costs` has an entry for every stage.
[[nodiscard]] Traffic traffic(const LoweredProgram& program, const CostTable& costs);

}  // namespace stagecraft
