#include "stagecraft/partitioner/planning/planning_run.h"

#include "stagecraft/partitioner/planning/program_pricer.h"

#include <algorithm>
#include <utility>

namespace stagecraft::planning {

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
  CutSearch search(placed, order_free_bounds(placed, request.micro_batches, pricer.split(), pricer.goes_on()),
                   maker.cuttable(), settings);
  return search.run(pricer, to_beat, share, seeds);
}

}  // namespace stagecraft::planning
