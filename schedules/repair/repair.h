#pragma once

// Repairs what stands around the computation: a program that does the right work in a possible order, but
// whose loads, receives, slots or reports are missing, doubled or in the wrong place. The order of forwards,
// backwards, reductions and steps is never touched; where that order is what cannot be, the program comes
// back refused.

#include "schedules/checker/checker.h"
#include "schedules/program/program.h"
#include "schedules/rules/transport_rules.h"

#include <string>
#include <vector>

namespace stagecraft {

struct Repair {
  ScheduleProgram schedule{};          ///< as repaired
  LoweredProgram program{};            ///< its lowering; what was given, if that needed no repair
  std::vector<std::string> changes{};  ///< what was changed, a sentence each; empty: nothing
  Proof proof{};                       ///< of `program`
  /// With a refused proof: why no change that keeps the order of computation helps, as one sentence.
  std::string why_not{};
};

/// In a schedule program:
///   - a load that is missing, or stands behind its forward, is put before the forward;
///   - loads, reductions, norm agreements, steps and loss reports that were written twice are merged with the
///   first;
///   - every channel gets the slots that the rules need.
[[nodiscard]] Repair repair(const ScheduleProgram& program, const TransportRules& rules = {},
                            const CostTable* costs = nullptr);

/// In a lowered program that is refused, besides: transfers are laid anew over the same order of computation.
/// Receives are posted as early as their slots allow, what was posted, waited for, sent or released twice is
/// merged, what was missing is added, and channels get more slots where those they have do not suffice.
[[nodiscard]] Repair repair(const LoweredProgram& program, const TransportRules& rules = {},
                            const CostTable* costs = nullptr);

}  // namespace stagecraft
