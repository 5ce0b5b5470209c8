#include "partitioner/advice/replan.h"

#include "base/text.h"
#include "partitioner/plan/ties.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace stagecraft {
namespace {

/// Measured over expected; a time that was expected to be none says nothing.
double ratio(Seconds measured, Seconds expected) {
  return expected > Seconds{} && measured > Seconds{} ? measured / expected : 1.0;
}

void scale(Timing& timing, double factor) {
  timing.median = timing.median * factor;
  timing.spread = timing.spread * factor;
}

/// What the profile says of the running plan's stages, on a device of speed 1.
std::vector<StageCosts> expected_costs(const Plan& running, const Profile& profile) {
  std::vector<StageCosts> costs;
  for (const StagePlan& stage : running.stages) {
    costs.push_back(stage_costs(profile.at(running.micro_batch_size), stage.first_layer, stage.last_layer,
                                profile.optimizer_bytes_per_parameter_byte));
  }
  return costs;
}

void check_inputs(const Plan& running, const std::vector<MeasuredStage>& measured, const Profile& profile,
                  const Cluster& cluster) {
  STAGECRAFT_CHECK(measured.size() == running.stages.size(), "measured is every stage of the plan");
  const auto layers = static_cast<int>(profile.at(running.micro_batch_size).layers.size());
  if (layers != running.layers()) {
    throw InputError(
        fmt::format("the run's plan is of {} and the profile of {}: expected a profile of the run's model",
                    plural(running.layers(), "layer"), layers));
  }
  if (!running.model_fingerprint.empty() && !profile.model_fingerprint.empty() &&
      running.model_fingerprint != profile.model_fingerprint) {
    throw InputError(fmt::format("the run's model ({}) is not the profile's ({}): their fingerprints differ",
                                 running.model, profile.model));
  }
  const int ranks = running.placement().world();
  if (ranks > cluster.devices()) {
    throw InputError(fmt::format("the run has {}, but the cluster{} has {}", plural(ranks, "rank"),
                                 cluster.name.empty() ? "" : " " + cluster.name,
                                 plural(cluster.devices(), "device")));
  }
  for (const StagePlan& stage : running.stages) {
    if (stage.ranks.size() > 1) throw InputError("the run's plan has replicated stages: not replanned yet");
  }
}

/// The setting of all stages; absent where they differ.
std::optional<Recompute> common_setting(const RecomputeSettings& settings) {
  const bool differ = std::ranges::adjacent_find(settings, std::not_equal_to{}) != settings.end();
  return differ ? std::nullopt : std::optional(settings.front());
}

PlanRequest request_of(const Plan& running, const SearchBudget& search, ReplannedRanks kept) {
  PlanRequest request;
  request.recompute = common_setting(running.recompute());
  request.micro_batch_size = running.micro_batch_size;
  request.micro_batches = running.micro_batches;
  request.schedule = running.schedule;
  request.search = search;
  const auto stages = static_cast<int>(running.stages.size());
  const int ranks = running.placement().world();
  if (stages > ranks) request.virtual_stages = stages / ranks;
  if (kept == ReplannedRanks::as_now) request.stages = stages;
  return request;
}

/// The running plan as it would be priced with this profile and cluster.
Plan priced_again(Plan plan, const Profile& profile, const Cluster& cluster) {
  CostTable& costs = plan.costs.emplace();
  costs.network = cluster.network();
  costs.loss = profile.at(plan.micro_batch_size).loss_report();
  costs.stages = expected_costs(plan, profile);
  if (!cluster.speed.empty()) {
    costs.speed.assign(cluster.speed.begin(), cluster.speed.begin() + plan.placement().world());
  }
  set_ties(plan, profile.ties);
  plan.skips.clear();     // a profile does not say what bypasses stages; its costs are those of relays
  plan.capacity.reset();  // it runs, so it fits
  plan.predicted = predict(plan);
  return plan;
}

/// The answer for a profile and a cluster that explain what was measured.
Replanned answer_of(Attribution blame, std::vector<double> factors, const Plan& running,
                    const Profile& profile, const Cluster& cluster, const PlanRequest& request) {
  return {blame, std::move(factors), priced_again(running, profile, cluster),
          make_plan(profile, cluster, request)};
}

/// Slow devices: the cluster's speeds change.
Replanned blame_devices(const Plan& running, const std::vector<MeasuredStage>& measured,
                        const Profile& profile, Cluster cluster, const PlanRequest& request) {
  const std::vector<StageCosts> expected = expected_costs(running, profile);
  const Placement placement = running.placement();
  cluster.speed.resize(to_size(cluster.devices()), 1.0);
  std::vector<double> factors;
  for (int r = 0; r < placement.world(); ++r) {
    Seconds took, should;
    for (const StageId stage : placement.stages_of(Rank{r})) {
      const StageCosts& costs = expected[stage.index()];
      took += measured[stage.index()].forward + measured[stage.index()].backward;
      should += costs.forward + costs.backward_input + costs.backward_weight;
    }
    double& speed = cluster.speed[to_size(r)];
    factors.push_back(ratio(took, should / speed));
    speed = std::max(kLeastSpeed, speed / factors.back());
  }
  return answer_of(Attribution::devices, std::move(factors), running, profile, cluster, request);
}

/// Slow layers: the profile's layer times change.
Replanned blame_layers(const Plan& running, const std::vector<MeasuredStage>& measured, Profile profile,
                       const Cluster& cluster, const PlanRequest& request) {
  const std::vector<StageCosts> expected = expected_costs(running, profile);
  Measurement& measurement =
      *std::ranges::find(profile.measurements, running.micro_batch_size, &Measurement::micro_batch);
  std::vector<double> factors;
  for (std::size_t s = 0; s < running.stages.size(); ++s) {
    const StagePlan& stage = running.stages[s];
    const StageCosts& costs = expected[s];
    const double speed = cluster.speed.empty() ? 1.0 : cluster.speed[stage.ranks.front().index()];
    const Seconds backward = costs.backward_input + costs.backward_weight;
    const double forward_factor = ratio(measured[s].forward, costs.forward / speed);
    const double backward_factor = ratio(measured[s].backward, backward / speed);
    const double step_factor = ratio(measured[s].step, costs.step / speed);
    factors.push_back(ratio(measured[s].forward + measured[s].backward, (costs.forward + backward) / speed));
    for (int layer = stage.first_layer; layer < stage.last_layer; ++layer) {
      LayerProfile& row = measurement.layers[to_size(layer)];
      scale(row.forward, forward_factor);
      scale(row.backward_input, backward_factor);
      scale(row.backward_weight, backward_factor);
      scale(row.step, step_factor);
    }
  }
  return answer_of(Attribution::layers, std::move(factors), running, profile, cluster, request);
}

}  // namespace

Seconds Replanned::gain() const { return std::max(Seconds{}, present.predicted->step - result.best.step()); }

std::optional<double> Replanned::break_even(Seconds cost) const {
  const Seconds saved = gain();
  if (saved <= Seconds{}) return std::nullopt;
  return cost / saved;
}

std::vector<Replanned> replan(const Plan& running, const std::vector<MeasuredStage>& measured,
                              const Profile& profile, const Cluster& cluster, const SearchBudget& search,
                              ReplannedRanks ranks) {
  check_inputs(running, measured, profile, cluster);
  const PlanRequest request = request_of(running, search, ranks);
  return {blame_devices(running, measured, profile, cluster, request),
          blame_layers(running, measured, profile, cluster, request)};
}

}  // namespace stagecraft
