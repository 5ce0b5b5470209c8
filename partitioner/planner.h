#pragma once

// The planner: exact min-max partition of a chain of layers into stages, with transfer times and the memory
// the chosen schedule needs. A stage lies on one device; a device holds as many as the schedule wants.
// Dynamic program over (stages, layers); the bottleneck of a partition is the largest of its stages' compute
// times and of its cuts' transfer times, as in PipeDream (SOSP'19, 3.1) without replication.

#include "partitioner/cluster.h"
#include "partitioner/plan.h"
#include "partitioner/profile.h"

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace stagecraft {

/// How far a search is: placements tried, of how many, and the best step so far (infinite: none).
struct SearchProgress {
  std::size_t tried = 0;
  std::size_t placements = 0;
  Seconds best;
};

/// For schedules that are searched for (Schedule::searched): how long, over all placements.
struct SearchBudget {
  std::int64_t work = 2'000'000;  ///< computations priced a placement: the same plan from the same request
  std::optional<Seconds> time_limit;                      ///< instead: as much as there is time for
  std::function<void(const SearchProgress&)> progress{};  ///< called often; may be empty
};

struct PlanRequest {
  std::int64_t micro_batch_size = 1;
  int micro_batches = 1;
  std::optional<int> stages;          ///< absent: those of 1..devices ranks, the best predicted step wins
  std::optional<int> virtual_stages;  ///< a rank; absent: the schedule's own
  std::vector<int> cuts;              ///< first layer of stages 1, 2, ...; not empty: the user's own cuts
  ScheduleChoice schedule;
  Recompute recompute = Recompute::none;  ///< of every stage
  SearchBudget search{};
};

/// What a search found beside the plan.
struct SearchResult {
  std::string from;         ///< the seed: "zb_h1 squeezed"
  std::int64_t orders = 0;  ///< priced
  double gap = 0;           ///< of the step to the lower bound, as a share of the bound
  bool optimal = false;     ///< nothing can be faster with these stages on these ranks
};

struct PlanCandidate {
  Plan plan;
  std::string bound_by;     ///< "compute of stage 2", "link 0 -> 1"
  std::string placement{};  ///< "straight", "loop of 2 a rank", "v of 2 a rank"
  std::optional<SearchResult> search{};
};

struct PlanResult {
  PlanCandidate best;
  std::vector<PlanCandidate> others;  ///< the best of each other stage count and placement, by predicted step
  std::vector<std::string> infeasible;  ///< stage counts (and placements) that do not fit, and by how much
};

/// Throws RefusedError when nothing fits, saying which stage misses by how much; InputError for impossible
/// requests (more stages than layers or devices, cuts out of order).
[[nodiscard]] PlanResult make_plan(const Profile& profile, const Cluster& cluster,
                                   const PlanRequest& request);

/// The cuts of the exact optimum for the placement's stages, each on one rank: smallest bottleneck, of any
/// stage's compute and of any transfer between ranks; among equals the smallest sum of squares of stage times
/// (the most even), then the earliest cuts. Empty when no partition satisfies `fits`.
[[nodiscard]] std::optional<std::vector<int>> min_max_cuts(
    const Measurement& measurement, const Network& network, const Placement& placement,
    const std::vector<double>& speed, const std::function<bool(StageId, int first, int last)>& fits);

}  // namespace stagecraft
