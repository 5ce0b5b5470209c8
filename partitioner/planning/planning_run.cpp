#include "partitioner/planning/planning_run.h"

#include "partitioner/planning/program_pricer.h"

#include <algorithm>
#include <optional>
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
  progress.best = std::min(progress.best, candidate.plan.predicted->step);
  candidates.push_back(std::move(candidate));
}

void PlanningRun::tell_progress() const {
  if (request.search.progress) request.search.progress(progress);
}

std::optional<double> PlanningRun::price(const Layout& layout, const std::vector<int>& cuts,
                                         const RecomputeSettings& settings, double to_beat) const {
  const PlacedCosts placed(chain, network, layout.placement(), cluster.speed);
  ProgramPricer pricer(
      schedule, maker.schedule_request(layout, {request.micro_batches}, settings), placed,
      maker.speeds(layout.devices()), maker.capacity(),
      [this](int first, int last) { return maker.costs_of(first, last); }, true);
  const double seconds = pricer.seconds(cuts, settings);
  if (!(seconds < to_beat) || !pricer.over_cap(cuts, settings).empty()) return std::nullopt;
  return seconds;
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
      placed, maker.speeds(layout.devices()), capped ? maker.capacity() : std::nullopt,
      [this](int first, int last) { return maker.costs_of(first, last); }, by_replica);
  CutSearch search(placed, order_free_bounds(placed, request.micro_batches, pricer.split()), maker.cuttable(),
                   settings);
  return search.run(pricer, to_beat, share, seeds);
}

}  // namespace stagecraft::planning
