#include "stagecraft/partitioner/planning/planning_run.h"

#include "stagecraft/partitioner/compare_costs.h"
#include "stagecraft/partitioner/planning/cut_descent.h"
#include "stagecraft/partitioner/planning/program_pricer.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace stagecraft::planning {
namespace {

/// Of a search's budget, for a search that ends if there are few cuts.
constexpr std::int64_t kFirstShare = 16;
/// And for a descent, in eighths: most of it where the order follows the costs, so that nothing comes after, and where
/// there is no more than is good for a descent anyway.
constexpr std::int64_t kDescent = 2, kMostOfIt = 7, kGoodDescent = 1'000'000'000;
/// And at most, in nanoseconds, about.
constexpr std::int64_t kMostAtFirst = 500'000'000;

/// For cuts that need little, where none fit.
constexpr std::int64_t kMostToTell = 50'000'000;

}  // namespace

PlanningRun::PlanningRun(const Profile& profile, const Cluster& on, const PlanRequest& asked)
    : cluster(on),
      request(asked),
      maker(profile, on, asked),
      schedule(maker.schedule()),
      chain(maker.measurement()),
      network(on.network()),
      budget(asked.search) {}

void PlanningRun::keep(PlanCandidate candidate) {
  progress.best = std::min(progress.best, candidate.step());
  candidates.push_back(std::move(candidate));
}

bool PlanningRun::keep(PlanMaker::Balanced balanced) {
  if (balanced.candidate) {
    keep(std::move(*balanced.candidate));
    return true;
  }
  infeasible.push_back(std::move(balanced.reason));
  return false;
}

void PlanningRun::finish(StepProof& proof) const {
  proof.bound = std::min(proof.bound, progress.best);
  proof.optimal = proof.bound.value >= best() * (1 - 1e-9);
}

std::optional<PlanningRun::CutPrice> PlanningRun::price(const Layout& layout, const std::vector<int>& cuts,
                                                        double to_beat) const {
  const PlacedCosts placed(chain, network, layout.placement(), cluster.speed);
  StageSettings settings = maker.settings(layout, schedule, true, !schedule.orders_by_time);
  auto tried = settings.least(cuts);
  if (!tried) return std::nullopt;
  ProgramPricer pricer(
      schedule, maker.schedule_request(layout, {request.micro_batches}, *tried), placed, maker.capacity(),
      [this](int first, int last) { return maker.costs_of(first, last); }, /*by_replica=*/true);
  while (tried) {
    const double seconds = pricer.seconds(cuts, *tried);
    if (!(seconds < to_beat)) return std::nullopt;
    const std::vector<Rank> over = pricer.over_cap(cuts, *tried);
    if (over.empty()) return CutPrice{seconds, *tried};
    tried = settings.after_refusal(cuts, *tried, over);
  }
  return std::nullopt;
}

CutSearchResult PlanningRun::search_cuts(const Layout& layout, const Schedule& for_schedule, double to_beat,
                                         const CutSearchBudget& share,
                                         const std::vector<std::vector<int>>& seeds, bool capped,
                                         bool by_replica) const {
  const PlacedCosts placed(chain, network, layout.placement(), cluster.speed);
  StageSettings settings = maker.settings(layout, for_schedule, capped, !for_schedule.orders_by_time);
  ProgramPricer pricer(
      for_schedule,
      maker.schedule_request(layout, {request.micro_batches},
                             RecomputeSettings(placed.placement().ranks.size(), settings.fastest())),
      placed, capped ? maker.capacity() : std::nullopt,
      [this](int first, int last) { return maker.costs_of(first, last); }, by_replica);
  const OrderFreeBounds bounds =
      order_free_bounds(placed, request.micro_batches, pricer.split(), pricer.goes_on());
  CutSearch search(placed, bounds, maker.cuttable(), settings);
  const std::optional<Bytes> capacity = capped ? maker.capacity() : std::nullopt;
  const bool alone = placed.placement().world() >= placed.stages();
  if (alone && !(capacity && for_schedule.orders_by_time)) return search.run(pricer, to_beat, share, seeds);
  // Several stages per rank: what branch and bound does not end soon, a descent begins. So does it where a cap leaves
  // few orders by time.
  CutSearchBudget part = share;
  part.look_ahead = std::min(share.work / kFirstShare, kMostAtFirst);
  CutSearchResult found = search.run(pricer, to_beat, part, seeds);
  part.look_ahead = std::numeric_limits<std::int64_t>::max();
  const bool nothing = capacity && to_beat == kInfinite && !found.cuts;
  if (share.work == 0 || (found.complete && (alone || !nothing))) return found;
  if (request.search.first_that_fits && found.cuts) return found;
  std::vector<std::vector<int>> starts = seeds;
  if (found.cuts) starts.insert(starts.begin(), *found.cuts);
  CutDescent descent({.costs = placed,
                      .stages = maker.stages(),
                      .settings = settings,
                      .cuttable = maker.cuttable(),
                      .capacity = capacity,
                      .orders_by_time = for_schedule.orders_by_time,
                      .first_that_fits = request.search.first_that_fits},
                     pricer);
  const std::int64_t eighth = share.work / 8;
  if (found.complete) {
    part.work = std::min(share.work, kMostToTell);
  } else {
    const std::int64_t wanted = for_schedule.orders_by_time
                                    ? kMostOfIt * eighth
                                    : std::max(kDescent * eighth, std::min(kMostOfIt * eighth, kGoodDescent));
    part.work = std::min(wanted, std::max(share.work - found.work, kDescent * eighth));
  }
  CutDescent::Result better = descent.run(std::min(to_beat, found.seconds), part, starts);
  if (nothing && !better.cuts) found.nearest = descent.least().cuts;
  found.simulated += better.simulated;
  found.work += better.work;
  if (better.cuts) {
    found.cuts = std::move(better.cuts);
    found.settings = std::move(better.settings);
    found.seconds = better.seconds;
    found.bound = std::min(found.bound, found.seconds);
  }
  if (found.complete || (request.search.first_that_fits && found.cuts)) return found;
  // Where a program's critical path is no bound of others, branch and bound comes no further.
  if (for_schedule.orders_by_time || found.work >= share.work) return found;
  part.work = share.work - found.work;
  CutSearch rest(placed, bounds, maker.cuttable(), settings);
  CutSearchResult last = rest.run(pricer, std::min(to_beat, found.seconds), part, {});
  last.bound = std::max(last.bound, found.bound);
  last.simulated += found.simulated;
  last.work += found.work;
  last.nearest = std::move(found.nearest);
  if (!last.cuts) {
    last.cuts = std::move(found.cuts);
    last.settings = std::move(found.settings);
    last.seconds = found.seconds;
  }
  return last;
}

}  // namespace stagecraft::planning
