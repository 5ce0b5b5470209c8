#pragma once

// The planner: which layers make which stage on which devices. docs/design/planner.md has the whole picture.
//
// Synchronous schedules: the smallest simulated step of the very program that will run, by branch and bound
// over cuts (planning/cut_search.h), for every layout of the family (planning/layout.h): every stage count,
// and with `replicate` every number of replicas and block of devices. Asynchronous ones: the smallest steady-state
// bottleneck, of any stage and any boundary (planning/occupancy.h), by dynamic programs; of those of several
// stage counts the best simulated steady step. A searched schedule (auto) gets the cuts that are best for any
// other schedule of its placement.

#include "partitioner/plan/cluster.h"
#include "partitioner/plan/jittered_step.h"
#include "partitioner/plan/plan.h"
#include "partitioner/plan/profile.h"

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

/// How long is searched. Work is counted, so that the same request gives the same plan.
struct SearchBudget {
  /// For schedules that are searched for (Schedule::searched): computations priced a placement.
  std::int64_t work = 2'000'000;
  /// For cuts, over all layouts: about nanoseconds.
  std::int64_t cut_work = 4'000'000'000;
  std::optional<Seconds> time_limit;                      ///< instead: as much as there is time for
  std::function<void(const SearchProgress&)> progress{};  ///< called often; may be empty
  bool first_that_fits = false;                           ///< ends with the first plan, however slow it is
  bool brief = false;                                     ///< refusals are not read: they need no figures

  /// Leaves each of so many searches its part. Requires searches >= 1.
  void share_among(std::int64_t searches) {
    work /= searches;
    cut_work /= searches;
    if (time_limit) time_limit = *time_limit / static_cast<double>(searches);
  }
};

struct PlanRequest {
  std::int64_t micro_batch_size = 1;
  int micro_batches = 1;
  std::optional<int> stages;          ///< absent: those of 1..devices ranks, the best predicted step wins
  std::optional<int> virtual_stages;  ///< a rank; absent: the schedule's own
  std::vector<int> cuts;              ///< first layer of stages 1, 2, ...; not empty: the user's own cuts
  bool replicate = false;             ///< whether stages may have several replicas; the engine runs one
  std::vector<int> widths{};          ///< replicas of each stage; not empty: the user's own
  ScheduleChoice schedule;
  /// Of every stage; absent: chosen for each, with the cuts, so that it fits.
  std::optional<Recompute> recompute = Recompute::none;
  SearchBudget search{};
};

/// What a search found beside the plan.
struct SearchResult {
  std::string from;         ///< the seed: "zb_h1 squeezed"
  std::int64_t orders = 0;  ///< priced
  double gap = 0;           ///< of the step to the lower bound, as a share of the bound
  bool optimal = false;     ///< nothing can be faster with these stages on these ranks
  /// Where no order whatever fits: what the rank that misses most needs at least.
  std::optional<Bytes> impossible_below{};
};

struct PlanCandidate {
  Plan plan;
  std::string bound_by;     ///< "compute of stage 2", "link 0 -> 1", "all-reduce of stage 0"
  std::string placement{};  ///< "straight", "loop of 2", "3-1", "2 x 4, in blocks of 2"
  std::optional<SearchResult> search{};
  std::optional<JitteredStep> jittered{};  ///< where it was asked for

  [[nodiscard]] Seconds step() const { return plan.predicted->step; }
  [[nodiscard]] Bytes memory() const;  ///< of the rank that needs most
};

/// What is proved of a synchronous plan's step.
struct StepProof {
  Seconds bound;               ///< no plan of the family has a shorter simulated step
  bool optimal = false;        ///< the plan's own step meets it
  bool whole_family = true;    ///< of all layouts; otherwise of equally wide stages only
  std::int64_t simulated = 0;  ///< plans
  std::size_t layouts = 0;     ///< considered
  /// The step of the same layout without a memory cap, where that is shorter.
  std::optional<Seconds> without_cap{};

  /// Of a plan's step to the bound, as a share of the bound.
  [[nodiscard]] double gap(Seconds step) const { return bound > Seconds{} ? step / bound - 1 : 0; }
};

struct PlanResult {
  PlanCandidate best;
  /// One of each other stage count and placement, by predicted step: what was found until it was clear that
  /// the best one is better.
  std::vector<PlanCandidate> others;
  std::vector<std::string>
      infeasible;  ///< stage counts (and placements) in which nothing fits, and by how much
  std::vector<std::string> not_found;  ///< and in which something may, but nothing was found
  std::optional<StepProof> proof{};    ///< where cuts were searched for by the simulated step
};

/// What a refusal to plan says: why each number of stages or layout does not fit.
class NoPlanFits : public RefusedError {
 public:
  enum class Proof {
    none,           ///< nothing was found
    of_this_chain,  ///< nothing fits
    of_any_cuts  ///< nor with the same layers in another order: there are not enough bytes for what they hold
  };
  /// Requires at least one reason, and none that is empty. `searched`: so long; counts where there is no proof.
  NoPlanFits(std::vector<std::string> reasons, Proof proof, Seconds searched);
  /// Whether nothing fits. Otherwise nothing was found.
  [[nodiscard]] bool proved() const { return proof_ != Proof::none; }
  [[nodiscard]] Proof proof() const { return proof_; }
  [[nodiscard]] Seconds searched() const { return searched_; }
  [[nodiscard]] const std::vector<std::string>& reasons() const { return reasons_; }
  /// Of most stages, which are the smallest.
  [[nodiscard]] const std::string& last_reason() const { return reasons_.back(); }

 private:
  std::vector<std::string> reasons_;
  Proof proof_;
  Seconds searched_;
};

/// Throws NoPlanFits when nothing fits or nothing that does was found, saying which stage misses by how much;
/// InputError for impossible requests (more stages than layers or devices, cuts out of order).
[[nodiscard]] PlanResult make_plan(const Profile& profile, const Cluster& cluster,
                                   const PlanRequest& request);

}  // namespace stagecraft
