#pragma once

// The memory of a rank action by action: the curve whose highest point is the checker's proved peak.

#include "schedules/memory/held.h"
#include "schedules/program/program.h"

#include <cstddef>
#include <vector>

namespace stagecraft {

/// What one rank holds, in requested tensor bytes, at the moments of its list.
struct HeldBytes {
  Rank rank;
  Bytes fixed;  ///< for the whole segment: weights, older versions, gradients, optimizer state, slots
  std::vector<Bytes> moments;  ///< two per action, `fixed` included: while it runs, and when it has ended

  [[nodiscard]] Bytes during(std::size_t action) const { return moments[2 * action]; }
  [[nodiscard]] Bytes after(std::size_t action) const { return moments[2 * action + 1]; }
};

/// One entry per rank. `program` must be accepted by the checker with these costs (InternalError otherwise).
/// schedules/memory/held.h says what counts.
/// Tests show by other tables that each row of ours counts.
[[nodiscard]] std::vector<HeldBytes> held_bytes(const LoweredProgram& program, const CostTable& costs,
                                                const MemoryTable& table = kMemoryTable);

}  // namespace stagecraft
