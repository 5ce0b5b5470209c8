#include "partitioner/search/planning_run.h"

#include "partitioner/plan/compare_costs.h"
#include "partitioner/search/cut_descent.h"
#include "partitioner/search/program_pricer.h"

#include <fmt/format.h>

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
/// What a descent found is seldom made better by branch and bound, which gets so many times its work to prove that.
constexpr std::int64_t kToProve = 5;

/// Of what was done so far, for cuts that take as long as the best and need less; in nanoseconds, about.
constexpr std::int64_t kTieShare = 20, kLeastForTies = 2'000'000, kMostForTies = 20'000'000;

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

bool PlanningRun::keep(const Layout& layout, PlanMaker::Balanced balanced) {
  if (balanced.candidate) {
    std::erase_if(refusals, [&](const Refusal& refusal) { return refusal.layout == layout; });
    if (balanced.candidate->step() < progress.best) pricer_of_best = std::move(balanced.pricer);
    keep(std::move(*balanced.candidate));
    return true;
  }
  refuse(layout, std::move(balanced.reason), balanced.proved);
  return false;
}

void PlanningRun::refuse(const Layout& layout, std::string reason, bool proved) {
  Refusal refusal{layout, std::move(reason), proved};
  const auto known = std::ranges::find(refusals, refusal.layout, &Refusal::layout);
  if (known == refusals.end()) {
    refusals.push_back(std::move(refusal));
  } else {
    *known = std::move(refusal);
  }
}

void PlanningRun::keep_least(const Layout& layout, const std::vector<int>& cuts, bool proved) {
  PlanCandidate least = maker.least(layout, cuts);
  if (maker.over_cap(least.plan).empty()) return keep(std::move(least));
  proved = proved || maker.none_can_fit(layout);
  std::string reason = maker.misses_least(layout, least, proved);
  if (layout.replicated()) reason = fmt::format("{}, {}", layout.name(), reason);
  refuse(layout, std::move(reason), proved);
}

std::vector<std::string> PlanningRun::reasons(bool proved) const {
  std::vector<std::string> all;
  for (const Refusal& refusal : refusals) {
    if (refusal.proved == proved) all.push_back(refusal.reason);
  }
  return all;
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
      [this](int first, int last) { return maker.costs_of(first, last); }, maker.facts(),
      /*by_replica=*/true);
  while (tried) {
    const double seconds = pricer.seconds(cuts, *tried);
    if (!(seconds < to_beat)) return std::nullopt;
    const std::vector<Rank> over = pricer.over_cap(cuts, *tried);
    if (over.empty()) return CutPrice{seconds, *tried};
    tried = settings.after_refusal(cuts, *tried, over);
  }
  return std::nullopt;
}

std::optional<PlanCandidate> PlanningRun::lighter(const PlanCandidate& than) const {
  const Placement placement = than.plan.placement();
  const Layout layout =
      straight_layout(schedule.placement, placement.stages() / placement.world(), placement.world());
  if (layout.placement() != placement || layout.stages() == 1) return std::nullopt;
  const PlacedCosts placed(chain, network, placement, cluster.speed);
  StageSettings settings = maker.settings(layout, schedule, true, !schedule.orders_by_time);
  ProgramPricer pricer(
      schedule, maker.schedule_request(layout, {request.micro_batches}, than.plan.recompute()), placed,
      maker.capacity(), [this](int first, int last) { return maker.costs_of(first, last); }, maker.facts());
  const OrderFreeBounds bounds =
      order_free_bounds(placed, request.micro_batches, pricer.split(), pricer.goes_on(), gradient_from() > 0);
  CutSearch search(placed, bounds, maker.cuttable(), settings);
  const CutSearchBudget share{.work = std::clamp(budget.taken() / kTieShare, kLeastForTies, kMostForTies),
                              .lightest = true};
  const CutSearchResult found =
      search.run(pricer, than.step().value * (1 + 3 * kRounding), share, {than.plan.cuts()});
  if (!found.cuts || *found.cuts == than.plan.cuts()) return std::nullopt;
  PlanCandidate other = maker.priced(layout, maker.plan_of(layout, *found.cuts, found.settings));
  const bool better =
      clearly_less(other.step().value, than.step().value) ||
      (!clearly_less(than.step().value, other.step().value) && other.memory() < than.memory());
  if (!better || !maker.over_cap(other.plan).empty()) return std::nullopt;
  return other;
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
      [this](int first, int last) { return maker.costs_of(first, last); }, maker.facts(), by_replica);
  const OrderFreeBounds bounds =
      order_free_bounds(placed, request.micro_batches, pricer.split(), pricer.goes_on(), gradient_from() > 0);
  CutSearch search(placed, bounds, maker.cuttable(), settings);
  const std::optional<Bytes> capacity = capped ? maker.capacity() : std::nullopt;
  const bool alone = placed.placement().world() >= placed.stages();
  if (alone && pricer.one_program()) return search.run(pricer, to_beat, share, seeds);
  // Where ranks hold several stages, or another program belongs to other cuts, bounds are loose: what branch and bound does not end
  // soon, a descent begins.
  CutSearchBudget part = share;
  const auto look_ahead = [&](std::int64_t work, std::int64_t descended) {
    const std::int64_t most = std::min(work / kFirstShare, kMostAtFirst);
    return descended == 0 ? most : std::min(most, 1 + kToProve * descended / kFirstShare);
  };
  part.look_ahead = look_ahead(share.work, share.before.descended);
  CutSearchResult found = search.run(pricer, to_beat, part, seeds);
  part.look_ahead = std::numeric_limits<std::int64_t>::max();
  const bool nothing = capacity && to_beat == kInfinite && !found.cuts;
  if (share.work == 0 || (found.complete && (alone || !nothing))) return found;
  if (layout.stages() == maker.cuttable()) return found;  // there are no other cuts
  if (request.search.first_that_fits && found.cuts) return found;
  std::vector<std::vector<int>> starts = seeds;
  if (found.cuts) starts.insert(starts.begin(), *found.cuts);
  CutDescent descent({.costs = placed,
                      .stages = maker.stages(),
                      .settings = settings,
                      .cuttable = maker.cuttable(),
                      .capacity = capacity,
                      .orders_by_time = for_schedule.orders_by_time,
                      .first_that_fits = request.search.first_that_fits,
                      .gradient_from = gradient_from()},
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
  found.nearest = std::move(better.nearest);
  found.simulated += better.simulated;
  found.work += better.work;
  found.descended = better.work;
  if (better.cuts) {
    found.cuts = std::move(better.cuts);
    found.settings = std::move(better.settings);
    found.seconds = better.seconds;
    found.bound = std::min(found.bound, found.seconds);
  }
  if (found.complete || (request.search.first_that_fits && found.cuts)) return found;
  // Where a program's critical path is no bound of others, branch and bound comes no further.
  if (for_schedule.orders_by_time || share.goes_on || found.work >= share.work) return found;
  part.work = share.work - found.work;
  part.look_ahead = look_ahead(part.work, share.before.descended + found.descended);
  CutSearch rest(placed, bounds, maker.cuttable(), settings);
  CutSearchResult last = rest.run(pricer, std::min(to_beat, found.seconds), part, {});
  last.bound = std::max(last.bound, found.bound);
  last.simulated += found.simulated;
  last.work += found.work;
  last.descended = found.descended;
  last.nearest = std::move(found.nearest);
  if (!last.cuts) {
    last.cuts = std::move(found.cuts);
    last.settings = std::move(found.settings);
    last.seconds = found.seconds;
  }
  return last;
}

}  // namespace stagecraft::planning
