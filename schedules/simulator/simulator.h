#pragma once

// Prices a lowered program: what the planner minimizes and what a run is compared with.
//
// The model. A rank carries out its actions in the program's order; times follow.
//   - Compute and step take their stage's cost divided by the rank's speed; a recompute costs a forward.
//   - A transfer is ready when its send was started, its receive is posted and the transfers that the sender
//     started earlier to the same receiver are over; it takes latency + bytes / bandwidth. Where the two
//     ranks have a link for themselves it begins at once. Where the ranks under a child share a link
//     (NetworkLevel::shared_by) it serves its transfers in the order in which they became ready, one
//     at a time, and a transfer begins when both its links have served those before it. The two directions
//     of a link do not disturb each other. Starting a send or posting a receive costs the rank
//     nothing; waiting ends when the transfer does.
//   - agree_norm ends for all ranks the time of collectives.h after the last one has come to it.
//   - A reduction begins when on each replica the last backward that feeds it is over, wherever its reduce
//     stands behind that, and takes the time of collectives.h; reduce waits for its end. So whatever stands
//     between the two overlaps with it. Transfers and collectives do not disturb each other.
//   - Loading and reporting cost nothing.

#include "schedules/costs/costs.h"
#include "schedules/program/program.h"
#include "schedules/program/timeline.h"
#include "schedules/simulator/results.h"

#include <cstddef>
#include <memory>
#include <vector>

namespace stagecraft {

/// One program, priced as often as one likes: construction orders the actions and resolves every transfer, a
/// run is one pass over arrays sized before, without allocation. Not safe for use by two threads at once.
class Simulator {
 public:
  /// `program` must be accepted by the checker and outlive the simulator; one that deadlocks throws
  /// RefusedError.
  explicit Simulator(const LoweredProgram& program);
  /// Costs are then those of the whole. Losses take no time.
  Simulator(const LoweredProgram& program, PartOf part);
  ~Simulator();
  Simulator(Simulator&&) noexcept;
  Simulator& operator=(Simulator&&) noexcept;

  /// `costs` has an entry for every stage. The result stays valid until the next run. `timeline`, if given,
  /// is replaced by the run's events and rank names; its title stays.
  const Simulation& run(const CostTable& costs, Timeline* timeline = nullptr);
  /// The best makespan the schedule's order allows: communication takes no time.
  const Simulation& run_free_links(const CostTable& costs);

  /// Of a synchronous step that is carried out again and again, each rank beginning the next one as soon as it has
  /// ended its list: the time from one to the next, once that is the same for all. At most the makespan, and
  /// less where ranks end a step at other times than they begin it.
  [[nodiscard]] Seconds cycle(const CostTable& costs);
  [[nodiscard]] Seconds cycle_free_links(const CostTable& costs);

  /// The longest chain where every pair of ranks has its links for itself.
  [[nodiscard]] CriticalPath critical_path(const CostTable& costs);
  /// The chain that cycle() is made of, where every pair of ranks has its links for itself.
  [[nodiscard]] Circuit critical_circuit(const CostTable& costs);

  /// Per rank. Takes two runs and memory for their waits.
  [[nodiscard]] std::vector<LostTime> lost_time(const CostTable& costs);
  /// The makespans of `jitter.samples` runs, in ascending order. An action's times in a sample depend on the
  /// seed and on where it stands in its rank's list, on nothing else. No sample allocates.
  [[nodiscard]] std::vector<Seconds> sample(const CostTable& costs, const Jitter& jitter);

  /// Actions carried out a run, transfers and buffer bookkeeping included.
  [[nodiscard]] std::size_t actions() const;
  /// Times that all of them were carried out so far, but for those on shared links of several steps.
  [[nodiscard]] std::int64_t passes() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// One run. `program` must be accepted by the checker (a deadlocked one throws RefusedError).
[[nodiscard]] Simulation simulate(const LoweredProgram& program, const CostTable& costs,
                                  Timeline* timeline = nullptr);

}  // namespace stagecraft
