// Proof 3: no deadlock, under the rendezvous rule (a send returns only when its receive is posted). The
// dependency graph is the one that lowering and simulator use, see schedules/dependencies.h: running it to
// the end is the proof, and where it stands still it names the shortest circle of ranks.

#include "schedules/checker/proofs.h"
#include "schedules/dependencies.h"

#include <fmt/format.h>

namespace stagecraft::checker {

void prove_no_deadlock(const Subject& subject, Findings& findings) {
  if (findings.full()) return;  // such a program may also take the graph very long
  const Dependencies dependencies(subject.program());
  if (dependencies.acyclic()) return;
  auto cycle = dependencies.describe_cycle(subject.program());
  std::string ranks;
  for (const std::int32_t node : dependencies.cycle()) {
    ranks += fmt::format("{}{}", ranks.empty() ? "" : ", ", dependencies.place(node).rank.value);
  }
  findings.add(Finding::Kind::deadlock,
               fmt::format("the program stands still after {} of {} actions: ranks {} wait for each other",
                           dependencies.order().size(), dependencies.size(), ranks),
               std::move(cycle));
}

}  // namespace stagecraft::checker
