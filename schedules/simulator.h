#pragma once

// Prices a lowered program: what the planner minimizes and what a run is compared with.
//
// The model. A rank carries out its actions in the program's order; times follow.
//   - Compute and step take their stage's cost divided by the rank's speed; a recompute costs a forward.
//   - A transfer has the link from its sender to its receiver for itself: it begins when its send was
//   started,
//     its receive is posted and the transfers that the sender started earlier to the same receiver are over,
//     and takes latency + bytes / bandwidth. The two directions between two ranks do not disturb each other.
//     Starting a send or posting a receive costs the rank nothing; waiting ends when the transfer does.
//   - agree_norm ends for all ranks 2 ceil(log2 P) latencies after the last one has arrived (a reduction up a
//     tree and back down, over the slowest link).
//   - reduce ends for all w replicas a ring all-reduce after the last one has arrived: every link of the ring
//     carries 2 (w-1)/w of the stage's parameter bytes in 2 (w-1) messages (Patarasu & Yuan, JPDC'09); the
//     slowest link sets the pace.
//   - Loading and reporting cost nothing.

#include "schedules/costs.h"
#include "schedules/program.h"
#include "schedules/timeline.h"

#include <cstddef>
#include <memory>
#include <vector>

namespace stagecraft {

/// Where one rank's time goes. All parts together are the makespan.
struct RankTimes {
  Seconds forward;   ///< recomputed ones too
  Seconds backward;  ///< both parts
  Seconds step;
  Seconds wait_activation, wait_gradient, wait_send;  ///< idle, by what is waited for
  Seconds wait_other;                                 ///< for losses and collectives, their cost included
  Seconds idle_end;                                   ///< from the rank's last action to the makespan
  [[nodiscard]] Seconds busy() const { return forward + backward + step; }
  [[nodiscard]] Seconds waiting() const { return wait_activation + wait_gradient + wait_send + wait_other; }
};

struct Simulation {
  Seconds makespan;
  std::vector<RankTimes> ranks;
  double bubble = 0;  ///< 1 - mean busy share over ranks
};

/// One program, priced as often as one likes: construction orders the actions and resolves every transfer, a
/// run is one pass over arrays sized before, without allocation. Not safe for use by two threads at once.
class Simulator {
 public:
  /// `program` must be accepted by the checker and outlive the simulator; one that deadlocks throws
  /// RefusedError.
  explicit Simulator(const LoweredProgram& program);
  ~Simulator();
  Simulator(Simulator&&) noexcept;
  Simulator& operator=(Simulator&&) noexcept;

  /// `costs` has an entry for every stage. The result stays valid until the next run. `timeline`, if given,
  /// is replaced by the run's events and rank names; its title stays.
  const Simulation& run(const CostTable& costs, Timeline* timeline = nullptr);
  /// The best makespan the schedule's order allows: communication takes no time.
  const Simulation& run_free_links(const CostTable& costs);

  /// Actions carried out a run, transfers and buffer bookkeeping included.
  [[nodiscard]] std::size_t actions() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// One run. `program` must be accepted by the checker (a deadlocked one throws RefusedError).
[[nodiscard]] Simulation simulate(const LoweredProgram& program, const CostTable& costs,
                                  Timeline* timeline = nullptr);
/// The best makespan the schedule's order allows: the same simulation with free communication.
[[nodiscard]] Simulation simulate_free_links(const LoweredProgram& program, const CostTable& costs);

}  // namespace stagecraft
