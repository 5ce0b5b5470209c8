// Proof 3: no deadlock, under the transport's rules. The dependency graph is the one that the simulator uses,
// see schedules/rules/dependencies.h: running it to the end is the proof, and where it stands still it names
// a shortest cycle.

#include "schedules/checker/proofs.h"
#include "schedules/rules/dependencies.h"

#include <fmt/format.h>

namespace stagecraft::checker {
namespace {

/// Whether no transfer waits for a slot that another one has: each has its own.
bool has_all_slots(const LoweredProgram& program) {
  std::size_t slots = 0;
  std::size_t posts = 0;
  for (const auto& of_rank : program.slots) slots += of_rank.size();
  program.each_action(
      [&](ActionPlace, const Action& action) { posts += action.op == Op::post_receive ? 1 : 0; });
  return slots >= posts;
}

}  // namespace

std::optional<DeviceWaits> prove_no_deadlock(const ProgramIndex& index, const TransportRules& rules,
                                             const CostTable* costs, Findings& findings) {
  if (findings.full()) return std::nullopt;  // such a program may also take the graph very long
  const Dependencies dependencies(index.program(), rules, costs);
  if (dependencies.acyclic()) {
    if (rules.sends != TransportRules::Sends::launched || findings.any()) return std::nullopt;
    const DeviceWaits waits = device_waits(index.program(), rules, dependencies);
    if (rules.announced && !waits.safe()) {
      findings.add(Finding::Kind::deadlock, fmt::format("{}: a wait for the device before it would never end",
                                                        index.name(*waits.first)));
    }
    return waits;
  }
  auto cycle = dependencies.describe_cycle(index.program());
  std::string ranks;
  for (const std::int32_t node : dependencies.cycle()) {
    ranks += fmt::format("{}{}", ranks.empty() ? "" : ", ", dependencies.place(node).rank.value);
  }
  findings.add(Finding::Kind::deadlock,
               fmt::format("the program stands still after {} of {} actions: ranks {} wait for each other{}",
                           dependencies.order().size(), dependencies.size(), ranks,
                           has_all_slots(index.program()) ? ", and no number of receive slots helps" : ""),
               std::move(cycle));
  return std::nullopt;
}

}  // namespace stagecraft::checker
