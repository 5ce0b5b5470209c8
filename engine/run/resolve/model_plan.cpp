#include "engine/run/resolve/model_plan.h"

#include "base/error.h"
#include "engine/core/links.h"
#include "engine/run/resolve/find_plan.h"
#include "partitioner/plan/skips.h"
#include "partitioner/plan/ties.h"
#include "profiler/tied_weights.h"
#include "schedules/generators/registry.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace stagecraft {

void check_known_costs(const Plan& plan, const std::string& file, const Model& model) {
  if (!plan.costs) return;
  const std::vector<std::pair<int, int>> layers = stage_layers(plan, model);
  const std::vector<BoundarySpec> sent = boundaries(model, plan.micro_batch_size);
  for (std::size_t s = 0; s < layers.size(); ++s) {
    const StageCosts& costs = plan.costs->stages.at(s);
    const auto compare = [&](const char* key, Bytes found, Bytes known, const std::string& whose) {
      if (found == known) return;
      throw InputError(
          {file, fmt::format("/costs/stages/{}/{}", s, key)},
          fmt::format("expected {}, as {} of {} have, found {}; memory is proved from these costs: make "
                      "the plan again",
                      known.value, whose, model.name, found.value));
    };
    Bytes weights;
    for (int layer = layers[s].first; layer < layers[s].second; ++layer)
      weights = std::min(kMostParameterBytes, weights + parameter_bytes(model, layer));
    compare("parameter_bytes", costs.parameters, weights,
            fmt::format("layers {} to {}", layers[s].first, layers[s].second - 1));
    const Bytes input{sent[static_cast<std::size_t>(layers[s].first)].bytes()};
    compare("input_bytes", costs.input, input, fmt::format("the values before layer {}", layers[s].first));
    if (s + 1 == layers.size()) continue;
    const Bytes output{sent[static_cast<std::size_t>(layers[s].second)].bytes()};
    compare("output_bytes", costs.output, output,
            fmt::format("the values behind layer {}", layers[s].second - 1));
  }
}

namespace {

/// Returns whether the optimizer is another than the one that the plan was made with.
bool follow_optimizer(Plan& plan, const Model& model, const ModelOptimizer& optimizer) {
  if (!plan.costs) return false;
  const std::vector<std::pair<int, int>> layers = stage_layers(plan, model);
  bool changed = false;
  for (std::size_t s = 0; s < layers.size(); ++s) {
    Bytes state;
    for (int layer = layers[s].first; layer < layers[s].second; ++layer)
      state += optimizer.state_bytes(layer);
    changed = std::exchange(plan.costs->stages.at(s).optimizer_state, state) != state || changed;
  }
  if (changed) plan.predicted.reset();
  return changed;
}

/// The model knows best which of its layers are trained.
void follow_frozen(const Model& model, Plan& plan) {
  const StageId from = stage_of_layer(plan.cuts(), model.gradient_from);
  if (plan.gradient_from == from) return;
  plan.gradient_from = from;
  plan.ties.clear();  // which follow
  plan.predicted.reset();
}

/// The model knows best which stages hold its tied weights.
void follow_ties(const RunConfig& config, const std::string& file, const Model& model,
                 const std::string& source, Plan& plan) {
  Plan tied = plan;
  set_ties(tied, tied_weights(model));
  if (tied.ties.empty() && plan.ties.empty()) return;
  if (tied.ties != plan.ties) tied.predicted.reset();
  validate(tied, source);
  if (!find_schedule(plan.schedule.name).synchronous && config.overflow_policy() == OnOverflow::skip) {
    throw InputError(
        {file, "/on_overflow"},
        fmt::format("{} lets each stage leave out an update by itself, and the stages that hold {} "
                    "must make the same ones: use a synchronous schedule, \"stop\", or capture the "
                    "model with --untie",
                    plan.schedule.name, model.ties.front().name));
  }
  plan = std::move(tied);
}

/// The model knows best what its stages pass by.
void follow_skips(const RunConfig& config, const Model& model, const std::string& source, Plan& plan,
                  std::vector<std::string>& notes) {
  const std::vector<std::pair<int, int>> layers = stage_layers(plan, model);
  const auto routed = [&](Skips skips) {
    Plan changed = plan;
    set_skips(changed, link_bytes(model, layers, plan.micro_batch_size, skips == Skips::direct));
    changed.predicted.reset();
    validate(changed, source);
    if (changed.costs) changed.predicted = predict(changed);
    return changed;
  };
  const bool bypasses =
      !skips_of(links_of(model, layers, boundaries(model, plan.micro_batch_size), true)).empty();
  if (!bypasses && plan.skips.empty()) return;
  const bool takes = !find_schedule(plan.schedule.name).searched;
  const Skips skips = config.pipeline.skips.value_or(takes ? Skips::direct : Skips::relay);
  try {
    plan = routed(skips);
  } catch (const RefusedError& error) {
    if (config.pipeline.skips || skips == Skips::relay) throw;
    notes.push_back(fmt::format(
        "skip connections are relayed through the stages between; sending them directly would not fit: {}",
        error.what()));
    plan = routed(Skips::relay);
  }
}

}  // namespace

std::vector<std::string> follow_model(Plan& plan, const std::string& source, const RunConfig& config,
                                      const std::string& file, const TrainingInputs& inputs) {
  const Model& model = inputs.model;
  std::vector<std::string> notes;
  if (plan.micro_batches != config.micro_batches()) {
    notes.push_back(
        fmt::format("{} was made for {} micro-batches per step, this run has {}; it is priced again", source,
                    plan.micro_batches, config.micro_batches()));
    plan.micro_batches = config.micro_batches();
    plan.predicted.reset();
  }
  if (follow_optimizer(plan, model, *inputs.optimizer) && source != kMadeNow) {
    notes.push_back(
        fmt::format("{} has the state of another optimizer in its costs than {} keeps; it is priced again",
                    source, config.optimizer.type.name()));
  }
  const std::vector<std::pair<int, int>> layers = stage_layers(plan, model);
  for (std::size_t s = 0; s < layers.size(); ++s) {
    plan.stages[s].loads = !model.fields_of(layers[s].first, layers[s].second, nullptr).empty();
  }
  follow_frozen(model, plan);
  follow_ties(config, file, model, source, plan);
  follow_skips(config, model, source, plan, notes);
  follow_gradient_norm(config, plan);
  if (plan.costs && !plan.predicted) plan.predicted = predict(plan);
  return notes;
}

bool agrees_on_norm(const RunConfig& config, const std::string& schedule) {
  return find_schedule(schedule).clips && config.gradient_norm;
}

void follow_gradient_norm(const RunConfig& config, Plan& plan) {
  const bool agrees = agrees_on_norm(config, plan.schedule.name);
  if (plan.schedule.agree_norm == agrees) return;
  plan.schedule.agree_norm = agrees;
  plan.predicted.reset();
  if (plan.costs) plan.predicted = predict(plan);
}

std::vector<std::pair<int, int>> stage_layers(const Plan& plan, const Model& model) {
  const int layers = static_cast<int>(model.layers.size());
  std::vector<std::pair<int, int>> stages;
  for (const StagePlan& stage : plan.stages) {
    stages.emplace_back(std::min(stage.first_layer, layers), std::min(stage.last_layer, layers));
  }
  return stages;
}

}  // namespace stagecraft
