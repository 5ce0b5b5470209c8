#pragma once

// What a program sends from rank to rank.

#include "schedules/costs.h"
#include "schedules/program.h"

#include <cstdint>

namespace stagecraft {

/// What one transfer carries: an activation the receiving stage's input, a gradient its output. `costs` has
/// an entry for that stage, which a loss needs none of.
[[nodiscard]] Bytes payload_bytes(const CostTable& costs, Payload payload, StageId to);

/// Between which ranks a transfer goes: an activation's and a gradient's of the stages that hold the
/// micro-batch, a loss's from a replica of the last stage to the one that reports.
[[nodiscard]] Rank sender_of(const Placement& placement, const Tag& tag);
[[nodiscard]] Rank receiver_of(const Placement& placement, const Tag& tag);

/// Transfers between ranks, losses included. Reductions over replicas and norm agreements are not: they are
/// the same under every schedule.
struct Traffic {
  std::int64_t messages = 0;
  Bytes bytes;
};

/// `costs` has an entry for every stage.
[[nodiscard]] Traffic traffic(const LoweredProgram& program, const CostTable& costs);

}  // namespace stagecraft
