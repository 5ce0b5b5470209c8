#include "engine/optimizers/model_optimizer.h"

#include "base/error.h"
#include "base/nearest.h"
#include "engine/optimizers/memory_order.h"
#include "engine/optimizers/name_pattern.h"
#include "models/tensors/libtorch_error.h"

#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/zeros.h>
#include <c10/util/accumulate.h>
#include <climits>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace stagecraft {
namespace {

bool has_matrix(const stagecraft::Layer& layer) {
  const std::vector<ParameterSpec>& parameters = layer.parameters();
  return std::any_of(parameters.begin(), parameters.end(),
                     [](const ParameterSpec& spec) { return spec.shape.size() >= 2; });
}

bool fits(const ParameterGroup& group, const ParameterSite& site) {
  return matches_any(group.parameters, site.name) &&
         static_cast<int>(site.shape.size()) <= group.most_dimensions.value_or(INT_MAX);
}

/// Where the model's first and last layer with a matrix are.
std::pair<int, int> ends_of(const Model& model) {
  int first = 0, last = static_cast<int>(model.layers.size()) - 1;
  while (first < last && !has_matrix(*model.layers[static_cast<std::size_t>(first)])) ++first;
  while (last > first && !has_matrix(*model.layers[static_cast<std::size_t>(last)])) --last;
  return {first, last};
}

/// Of a tied weight the owner's, and hidden where all its holders have it so: copies must get the same updates.
ParameterSite site_of(const Model& model, int layer, int parameter) {
  const Tie::Holder owner = model.owner_of(layer, parameter);
  const stagecraft::Layer& owning = *model.layers[static_cast<std::size_t>(owner.layer)];
  const ParameterSpec spec = owning.parameters()[static_cast<std::size_t>(owner.parameter)];
  const auto [first, last] = ends_of(model);
  const auto is_hidden = [&, first = first, last = last](const Tie::Holder& holder) {
    if (holder.layer <= first || holder.layer >= last) return false;
    const stagecraft::Layer& its = *model.layers[static_cast<std::size_t>(holder.layer)];
    return !its.parameters()[static_cast<std::size_t>(holder.parameter)].table;
  };
  bool hidden = is_hidden({layer, parameter});
  for (const Tie& tie : model.ties) {
    const Tie::Holder& front = tie.holders.front();
    if (front.layer != owner.layer || front.parameter != owner.parameter) continue;
    for (const Tie::Holder& holder : tie.holders) hidden = hidden && is_hidden(holder);
  }
  return {owning.name() + "." + spec.name, spec.shape, hidden};
}

std::vector<std::string> names_of(const std::vector<StateSpec>& state) {
  std::vector<std::string> names;
  for (const StateSpec& spec : state) names.push_back(spec.name);
  return names;
}

std::int64_t elements_of(const std::vector<StateSpec>& state) {
  std::int64_t sum = 0;
  for (const StateSpec& spec : state) sum += c10::multiply_integers(spec.shape);
  return sum;
}

/// A group or a pattern that fits nothing is a slip: parameters would silently go on without what it says.
void check_groups(const OptimizerConfig& config, const std::vector<ParameterSite>& sites, double lr,
                  const InputPlace& place) {
  std::vector<std::string> names;
  for (const ParameterSite& site : sites) names.push_back(site.name);
  for (std::size_t g = 0; g < config.groups.size(); ++g) {
    const ParameterGroup& group = config.groups[g];
    const auto at = [&](const std::string& key) {
      return InputPlace{place.file, fmt::format("{}/groups/{}/{}", place.pointer, g, key)};
    };
    for (std::size_t i = 0; i < group.parameters.size(); ++i) {
      const std::string& pattern = group.parameters[i];
      if (std::any_of(names.begin(), names.end(),
                      [&](const std::string& name) { return matches(pattern, name); }))
        continue;
      throw InputError(
          at(fmt::format("parameters/{}", i)),
          fmt::format("no parameter of the model fits \"{}\"; they are called {} and so on{}", pattern,
                      names.empty() ? "nothing" : "\"" + names.front() + "\"", did_you_mean(pattern, names)));
    }
    if (std::none_of(sites.begin(), sites.end(),
                     [&](const ParameterSite& site) { return fits(group, site); })) {
      throw InputError(at("most_dimensions"),
                       fmt::format("no parameter that fits this group's patterns has at most {} dimensions",
                                   group.most_dimensions.value_or(0)));
    }
    if (group.lr && lr == 0) {
      throw InputError(at("lr"), "needs an lr of the optimizer above 0, which schedules scale both by");
    }
  }
}

OptimizerPtr made(const OptimizerConfig& config) {
  OptimizerPtr optimizer = config.make();
  if (optimizer == nullptr) throw InternalError("what makes it gives a null pointer");
  return optimizer;
}

// Between updates the state has how far the weights are ahead; during one it has where they started.

/// The weights as the last update left them.
void step_back(const Tensors& parameters, const std::vector<bool>& received, OptimizerState& state) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    at::Tensor& ahead = state.tensors[i][kLookAhead];
    if (!ahead.defined()) ahead = at::zeros(parameters[i].sizes(), parameters[i].options());
    if (!received[i]) continue;
    parameters[i].sub_(ahead);
    ahead.copy_(parameters[i]);
  }
}

/// The update that was made since, `times` more.
void look_ahead(const Tensors& parameters, const std::vector<bool>& received, double times,
                OptimizerState& state) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (!received[i]) continue;
    at::Tensor& ahead = state.tensors[i][kLookAhead];
    parameters[i].add_(ahead.sub_(parameters[i]).mul_(-times));
  }
}

}  // namespace

ModelOptimizer::ModelOptimizer(const OptimizerConfig& config, const Model& model, const InputPlace& place)
    : name_(config.type.name()),
      optimizer_(made(config)),
      ema_decay_(config.ema_decay),
      staleness_(config.staleness),
      element_bytes_(static_cast<std::int64_t>(c10::elementSize(model.precision.full))) {
  std::vector<ParameterSite> sites;
  for (int i = 0; i < static_cast<int>(model.layers.size()); ++i) {
    const stagecraft::Layer& layer = *model.layers[static_cast<std::size_t>(i)];
    Layer& its = layers_.emplace_back();
    for (const ParameterSpec& spec : layer.parameters()) {
      Parameter parameter{.site = site_of(model, i, static_cast<int>(its.parameters.size())),
                          .memory_order = spec.memory_order};
      const ParameterSite& site = parameter.site;
      sites.push_back(site);
      const auto group = std::find_if(config.groups.begin(), config.groups.end(),
                                      [&](const ParameterGroup& candidate) { return fits(candidate, site); });
      const ParameterGroup own = group == config.groups.end() ? ParameterGroup{} : *group;
      parameter.rate_factor = own.lr ? *own.lr / optimizer_->learning_rate() : optimizer_->rate_factor(site);
      parameter.weight_decay = own.weight_decay.value_or(spec.decays ? optimizer_->weight_decay(site) : 0);
      parameter.state = optimizer_->state_of(site);
      parameter.kept = parameter.state;
      if (ema_decay_) parameter.kept.push_back({kAveragedWeights, spec.shape});
      if (staleness_.look_ahead > 0) parameter.kept.push_back({kLookAhead, spec.shape});
      its.parameters.push_back(std::move(parameter));
    }
    for (std::size_t p = 0; p < its.parameters.size(); ++p) {
      const auto like = [&](const Together& group) {
        const Parameter &a = its.parameters[group.front()], &b = its.parameters[p];
        return a.rate_factor == b.rate_factor && a.weight_decay == b.weight_decay &&
               names_of(a.state) == names_of(b.state);
      };
      const auto group = std::find_if(its.groups.begin(), its.groups.end(), like);
      (group == its.groups.end() ? its.groups.emplace_back() : *group).push_back(p);
    }
  }
  check_groups(config, sites, optimizer_->learning_rate(), place);
}

const std::vector<StateSpec>& ModelOptimizer::state_of(int layer, std::size_t parameter) const {
  return layers_.at(static_cast<std::size_t>(layer)).parameters.at(parameter).kept;
}

Bytes ModelOptimizer::state_bytes(int layer) const {
  Bytes bytes;
  for (const Parameter& parameter : layers_.at(static_cast<std::size_t>(layer)).parameters) {
    bytes += Bytes{elements_of(parameter.kept) * element_bytes_};
  }
  return bytes;
}

Bytes ModelOptimizer::workspace_bytes(int layer) const {
  const Layer& its = layers_.at(static_cast<std::size_t>(layer));
  std::int64_t most = 0;
  for (const Together& group : its.groups) {
    std::vector<ParameterSite> sites;
    for (const std::size_t p : group) sites.push_back(its.parameters[p].site);
    std::int64_t bytes = optimizer_->workspace_bytes(sites, element_bytes_);
    for (const std::size_t p : group) {
      const Parameter& parameter = its.parameters[p];
      const std::int64_t elements = parameter.site.elements();
      if (!shows_memory_order(*optimizer_, parameter.memory_order, elements, element_bytes_)) continue;
      bytes += bytes_of_copies(elements, element_bytes_, parameter.state.size()).value;
    }
    most = std::max(most, bytes);
  }
  constexpr std::int64_t kScalars = 64;  // rates and norms, as tensors of one number
  return Bytes{most > 0 ? most + kScalars : 0};
}

double ModelOptimizer::bytes_per_parameter_byte() const {
  double state = 0, parameters = 0;
  for (const Layer& layer : layers_) {
    for (const Parameter& parameter : layer.parameters) {
      state += static_cast<double>(elements_of(parameter.kept));
      parameters += static_cast<double>(parameter.site.elements());
    }
  }
  return parameters == 0 ? 0 : state / parameters;
}

void ModelOptimizer::step(int layer, const UpdateMoment& moment, const Tensors& parameters,
                          const Tensors& gradients, const std::vector<bool>& received,
                          OptimizerState& state) const {
  const Layer& its = layers_.at(static_cast<std::size_t>(layer));
  STAGECRAFT_CHECK(parameters.size() == its.parameters.size() && gradients.size() == parameters.size() &&
                       received.size() == parameters.size(),
                   "one gradient per parameter, and whether it is one");
  state.tensors.resize(parameters.size());
  UpdateMoment discounted = moment;
  discounted.learning_rate *= discount(moment, state);
  if (staleness_.look_ahead > 0) step_back(parameters, received, state);
  for (const Together& group : its.groups) {
    update(its, group, discounted, parameters, gradients, received, state);
  }
  if (ema_decay_) average(parameters, state);  // of the weights as they are, not as they are written ahead
  if (staleness_.look_ahead > 0) {
    look_ahead(parameters, received, staleness_.look_ahead * moment.weights_staleness, state);
  }
  ++state.steps;
}

double ModelOptimizer::discount(const UpdateMoment& moment, const OptimizerState& state) const {
  if (state.steps >= staleness_.discount_steps || moment.gradients_staleness == 0) return 1;
  const double power = 1 - static_cast<double>(state.steps) / static_cast<double>(staleness_.discount_steps);
  return std::pow(1 + moment.gradients_staleness, -power);
}

void ModelOptimizer::update(const Layer& layer, const Together& group, const UpdateMoment& moment,
                            const Tensors& parameters, const Tensors& gradients,
                            const std::vector<bool>& received, OptimizerState& state) const {
  const Parameter& one = layer.parameters[group.front()];
  OptimizerUpdate update{.learning_rate = moment.learning_rate * one.rate_factor,
                         .weight_decay = one.weight_decay,
                         .earlier_steps = state.steps,
                         .staleness = moment.gradients_staleness,
                         .state_names = names_of(one.state),
                         .state = std::vector<Tensors>(one.state.size())};
  if (element_bytes_ < 8 && std::abs(update.learning_rate) > std::numeric_limits<float>::max()) {
    throw InputError(
        fmt::format("the learning rate of {} in this step is {:g}, which float32 does not hold: "
                    "lower the group's or the schedule's",
                    one.site.name, update.learning_rate));
  }
  std::vector<std::vector<std::int64_t>> orders;
  for (const std::size_t i : group) {
    STAGECRAFT_CHECK(parameters[i].sizes() == layer.parameters[i].site.shape,
                     "the optimizer was made for another model");
    const std::vector<StateSpec>& specs = layer.parameters[i].state;
    for (std::size_t k = 0; k < specs.size(); ++k) {
      at::Tensor& tensor = state.tensors[i][specs[k].name];
      if (!tensor.defined()) tensor = at::zeros(specs[k].shape, parameters[i].options());
      if (received[i]) update.state[k].push_back(tensor);
    }
    if (!received[i]) continue;
    update.parameters.push_back(parameters[i]);
    update.gradients.push_back(gradients[i]);
    orders.push_back(layer.parameters[i].memory_order);
  }
  if (update.parameters.empty()) return;
  named([&] { return fmt::format("optimizer \"{}\"", name_); },
        [&] { update_as_they_lie(*optimizer_, update, orders); });
}

// torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn: the first average is the weights themselves.
void ModelOptimizer::average(const Tensors& parameters, OptimizerState& state) const {
  Tensors averages, fresh;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    at::Tensor& average = state.tensors[i][kAveragedWeights];
    if (!average.defined()) {
      average = parameters[i].clone();
      continue;
    }
    averages.push_back(average);
    fresh.push_back(parameters[i]);
  }
  if (!averages.empty()) at::_foreach_lerp_(averages, fresh, 1 - *ema_decay_);
}

}  // namespace stagecraft
