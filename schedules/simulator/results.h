#pragma once

// What the simulator is asked and what it answers.

#include "schedules/program/action.h"
#include "schedules/program/placement.h"

#include <cstdint>
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
/// followed from rank to rank to the one thing that is going on (docs/reference/simulator.md).
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
/// wait for the one before, on shared links too.
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
    StageId stage;  ///< whose gradients are reduced; none: an agreement of all ranks, or a tied weight's sum
    int times = 0;
    TieId tie;                     ///< none: no tied weight
    std::vector<StageId> holders;  ///< of the tied weight
  };
  Seconds length;  ///< with the costs it was found with: the makespan if no link is shared
  std::vector<Computing> computing;
  std::vector<Moving> moving;
  std::vector<Meeting> meeting;
};

/// A chain that begins and ends where a rank goes on from one step to the next, so many steps apart: the time from
/// step to step is at least its length by their number, with any costs.
struct Circuit {
  CriticalPath path;
  int steps = 1;
};

/// How times vary from action to action: log-normally, around their costs as medians.
struct Jitter {
  int samples = 1000;
  std::uint64_t seed = 0;
  double stage_spread = 0;  ///< interquartile range over median, where the costs have no spread of a stage
  double link_spread = 0;   ///< likewise, of transfers
};

/// A program that stands for one of the equal pipelines that a larger one consists of (partitioner/planning/
/// replica_part.h): its ranks are priced as ranks of that one, its reductions and agreements among all of
/// that one's.
struct PartOf {
  Placement whole;
  std::vector<Rank> ranks;  ///< of the whole, per rank of the part
};

}  // namespace stagecraft
