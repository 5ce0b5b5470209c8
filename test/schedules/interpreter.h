#pragma once

// A second opinion on lowered programs that shares nothing with the checker: it carries a program out, with
// symbols for tensors (a hash of how each was made), in a random order that the transport's rules allow, and
// sees what goes wrong. Slots are poisoned when they are posted and when they are released, like the engine's
// in its strictest mode. Where a transport has no tags, a message goes to whatever receive it meets.

#include "schedules/rules/transport_rules.h"

#include <cstdint>
#include <map>
#include <string>
#include <utility>

namespace stagecraft::test {

using Symbol = std::uint64_t;

struct Outcome {
  std::string wrong;  ///< what went wrong, "" for nothing
  /// By (stage, rank): the weights and running statistics after the last action.
  std::map<std::pair<int, int>, Symbol> weights, statistics;
  std::map<int, Symbol> reports;  ///< by group, as printed

  bool operator==(const Outcome&) const = default;
};

/// Any program is taken, however malformed. `seed` decides the order in which ranks run and transfers arrive.
/// `costs` tells message sizes.
[[nodiscard]] Outcome interpret(const LoweredProgram& program, unsigned seed,
                                const TransportRules& rules = {}, const CostTable* costs = nullptr);

}  // namespace stagecraft::test
