#pragma once

// Prices a lowered program: what the planner minimizes and what a run is compared with.
//
// The model. A rank carries out its actions in the program's order; times follow.
//   - Compute and step take their stage's cost divided by the rank's speed; a recompute costs a forward.
//   - A transfer is ready when its send was started, its receive is posted and the transfers that the sender
//     started earlier to the same receiver are over; it takes latency + bytes / bandwidth. Where the two
//     ranks have a link for themselves it begins at once. Where the ranks under a child share a card
//     (NetworkLevel::shared_by) each card serves its transfers in the order in which they became ready, one
//     at a time, and a transfer begins when both its cards have served those before it. The two directions
//     of a link or card do not disturb each other. Starting a send or posting a receive costs the rank
//     nothing; waiting ends when the transfer does.
//   - agree_norm ends for all ranks the time of collectives.h after the last one has come to it.
//   - A reduction begins when on each replica the last backward that feeds it is over, wherever its reduce
//     stands behind that, and takes the time of collectives.h; reduce waits for its end. So whatever stands
//     between the two overlaps with it. Transfers and collectives do not disturb each other.
//   - Loading and reporting cost nothing.

#include "schedules/costs.h"
#include "schedules/program.h"
#include "schedules/timeline.h"

#include <cstddef>
#include <cstdint>
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

/// Why a rank is idle: parts that add up to makespan - busy. At each moment of a wait, what is waited for is
/// followed from rank to rank to the one thing that is going on (docs/simulator.md).
struct LostTime {
  Seconds imbalance;         ///< others' work, beyond `dependency`
  Seconds dependency;        ///< others' work, at most what it would be if all ranks had equally much
  Seconds exposed_transfer;  ///< a transfer that somebody waits to receive
  Seconds blocked_send;      ///< a transfer whose sender waits for its end
  Seconds memory;            ///< a transfer later than it would be, for want of a posted slot
  Seconds barrier;           ///< a collective, from when its last member has come
  [[nodiscard]] Seconds total() const {
    return imbalance + dependency + exposed_transfer + blocked_send + memory + barrier;
  }
};

/// The longest chain of a program's needs: what is computed, sent and met one after the other, and how often.
/// With any costs the chain's own time is a lower bound of the program's makespan: each link of it has to
/// wait for the one before, on shared cards too.
struct CriticalPath {
  struct Computing {
    StageId stage;
    Rank rank;
    int forwards = 0;
    int recomputes = 0;       ///< of micro-batches that Recompute::all_but_last repeats as well
    int last_recomputes = 0;  ///< of those that only Recompute::all repeats
    int backwards = 0, input_parts = 0, weight_parts = 0, steps = 0;
    bool operator==(const Computing&) const = default;
    [[nodiscard]] int all_forwards() const { return forwards + recomputes + last_recomputes; }
  };
  struct Moving {
    Payload payload = Payload::activation;
    StageId from, to;
    Rank sender, receiver;
    int transfers = 0;
  };
  struct Meeting {
    StageId stage;  ///< whose gradients are reduced; none: an agreement of all ranks
    int times = 0;
  };
  Seconds length;  ///< with the costs it was found with: the makespan if no card is shared
  std::vector<Computing> computing;
  std::vector<Moving> moving;
  std::vector<Meeting> meeting;
};

/// How times vary from action to action: log-normally, around their costs as medians.
struct Jitter {
  int samples = 1000;
  std::uint64_t seed = 0;
  double stage_spread = 0;  ///< interquartile range over median, where the costs have no spread of a stage
  double link_spread = 0;   ///< likewise, of transfers
};

/// A program that stands for one of the equal pipelines that a larger one consists of (partitioner/planning/
/// replica_pricer.h): its ranks are priced as ranks of that one, its reductions and agreements among all of
/// that one's.
struct PartOf {
  Placement whole;
  std::vector<Rank> ranks;  ///< of the whole, per rank of the part
};

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

  /// The longest chain where every pair of ranks has its links for itself.
  [[nodiscard]] CriticalPath critical_path(const CostTable& costs);

  /// Per rank. Takes two runs and memory for their waits.
  [[nodiscard]] std::vector<LostTime> lost_time(const CostTable& costs);
  /// The makespans of `jitter.samples` runs, in ascending order. An action's times in a sample depend on the
  /// seed and on where it stands in its rank's list, on nothing else. No sample allocates.
  [[nodiscard]] std::vector<Seconds> sample(const CostTable& costs, const Jitter& jitter);

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
