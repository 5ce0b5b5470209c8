#include "engine/core/step_gate.h"

#include "base/error.h"
#include "engine/core/clipping.h"
#include "engine/core/overflow.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <utility>

namespace stagecraft {
namespace {

/// Every parameter's, of all stages in order. `mine`: of the stages that this rank is the first replica of,
/// which every rank has in ascending order. Collective.
std::vector<double> gather_norms(Transport& transport, const Placement& placement,
                                 const std::vector<int>& parameter_counts, const std::vector<double>& mine) {
  const std::vector<std::vector<double>> all = transport.all_gather(mine);
  std::vector<double> norms;
  std::vector<std::size_t> next(all.size(), 0);
  for (std::size_t s = 0; s < parameter_counts.size(); ++s) {
    const std::size_t rank = placement.ranks[s].front().index();
    for (int k = 0; k < parameter_counts[s]; ++k) norms.push_back(all[rank].at(next[rank]++));
  }
  return norms;
}

/// Of the last parameter whose gradient is not finite.
NotFiniteError norm_not_finite(const StagedModel& model, std::int64_t step,
                               const std::vector<double>& norms) {
  std::size_t at = norms.size() - 1;
  while (at > 0 && std::isfinite(norms[at])) --at;
  return gradient_not_finite(model.model, model.stage_layers, step, at, norms[at]);
}

/// The same numbers as PyTorch's gradient has them in memory: norms are added in that order. `order`: ParameterSpec's.
at::Tensor as_it_lies(const at::Tensor& gradient, const std::vector<std::int64_t>& order) {
  return order.empty() ? gradient : gradient.permute(order).contiguous();
}

void end_if_not_finite(Transport& transport, const StagedModel& model, std::int64_t step, double norm,
                       const std::vector<double>& norms) {
  if (std::isfinite(norm)) return;
  transport.barrier();  // all have found the same: none hears of another's end first
  throw norm_not_finite(model, step, norms);
}

void append_gradients(Stage& stage, Group group, Tensors& all) {
  if (stage.frozen()) return;
  for (int layer = stage.first_layer(); layer < stage.last_layer(); ++layer) {
    const Tensors& gradients = stage.gradients(group, layer);
    all.insert(all.end(), gradients.begin(), gradients.end());
  }
}

}  // namespace

StepGate::StepGate(const StagedModel& model, std::vector<Stage>& stages, Transport& transport,
                   const WorkerOptions& options, std::optional<LossScale> scale)
    : model_(model),
      stages_(stages),
      transport_(transport),
      options_(options),
      scale_(scale),
      late_norms_([this] { progress(); }),
      late_checks_([this] { progress(); }),
      looks_(stages.size()) {
  std::vector<std::int64_t> as_they_lie(static_cast<std::size_t>(model.parameters()));
  std::iota(as_they_lie.begin(), as_they_lie.end(), 0);
  if (!options.device.is_cpu() && model.norm_order != as_they_lie) {
    norm_order_ = at::tensor(model.norm_order).to(options.device);
  }
}

void StepGate::begin(const RankProgram& program) {
  STAGECRAFT_CHECK(!scale_ || !program.training() || program.agrees,
                   "a scaled loss needs an agreement on the norm");
  // A program that agrees hears at its own first agreement, which is a step later, behind more work of the
  // device.
  if (!program.agrees) late_norms_.hear_all();
  placement_ = &program.header.placement;
  outcomes_.assign(program.groups.size(), {});
  looks_.assign(stages_.size(), {});
  if (!scale_) return;
  for (Stage& stage : stages_) stage.scale_loss(scale_->value());
}

AfterLayer StepGate::look_at_layers(std::size_t stage, Group group) {
  Look& look = looks_[stage] = {.made = true};
  return [&looked_at = stages_[stage], &look, group](int layer) {
    if (look.not_finite) return;
    std::optional<std::size_t> found = last_not_finite(looked_at.gradients(group, layer));
    if (!found) return;
    for (int before = looked_at.first_layer(); before < layer; ++before) {
      *found += looked_at.gradients(group, before).size();
    }
    look.not_finite = found;
  };
}

Tensors StepGate::all_gradients(Group group) {
  Tensors all;
  for (Stage& stage : stages_) append_gradients(stage, group, all);
  return all;
}

Tensors StepGate::counted_gradients(Group group) {
  Tensors counted;
  for (Stage& stage : stages_) {
    if (placement_->ranks[stage.id().index()].front() != transport_.rank()) continue;
    if (stage.frozen()) continue;
    for (int layer = stage.first_layer(); layer < stage.last_layer(); ++layer) {
      const std::vector<ParameterSpec>& specs =
          model_.model.layers[static_cast<std::size_t>(layer)]->parameters();
      const Tensors& gradients = stage.gradients(group, layer);
      for (std::size_t i = 0; i < gradients.size(); ++i) {
        counted.push_back(model_.model.owns(layer, static_cast<int>(i))
                              ? as_it_lies(gradients[i], specs[i].memory_order)
                              : at::Tensor());
      }
    }
  }
  return counted;
}

bool StepGate::norm_may_be_late() const {
  const bool decides = scale_ || options_.on_overflow == OnOverflow::skip;
  return !options_.device.is_cpu() && !decides;
}

void StepGate::agree(Group group, std::int64_t step) {
  // One agreement behind the last: so a norm is heard one step late and never two, at the same place of all
  // lists.
  late_norms_.hear_all();
  GateOutcome& outcome = outcomes_[group.index()];
  outcome.agreed = true;
  const Tensors counted = counted_gradients(group);
  if (norm_may_be_late()) {
    const bool applies_alone = options_.gradient_clipping == 0 || transport_.world() == 1;
    if (applies_alone) return launch_norm(group, step, counted, nullptr);
    std::vector<Rank> all;
    for (int r = 0; r < transport_.world(); ++r) all.emplace_back(r);
    if (const auto exchange = transport_.make_sum(all, Tag::norms(group)))
      return launch_norm(group, step, counted, exchange.get());
  }
  const std::vector<double> norms = gather_norms(transport_, *placement_, model_.parameter_counts,
                                                 norms_of(counted, [this] { progress(); }));
  const double scale = scale_ ? scale_->value() : 1;
  const at::ScalarType type = model_.model.precision.full;
  const double norm =
      norm_of(norms, model_.norm_order, at::TensorOptions(options_.device).dtype(type)) / scale;
  outcome.skipped = !std::isfinite(norm);
  if (scale_) {
    outcome.loss_scale = scale;
    scale_->update(outcome.skipped);
  } else if (outcome.skipped && options_.on_overflow == OnOverflow::stop) {
    throw norm_not_finite(model_, step, norms);
  }
  if (outcome.skipped) return;
  outcome.norm = norm;
  const double limit = options_.gradient_clipping;
  const double factor = (limit > 0 ? clip_factor(norm, limit, type) : 1) / scale;
  if (factor != 1) multiply(all_gradients(group), factor);
}

void StepGate::launch_norm(Group group, std::int64_t step, const Tensors& counted, ReplicaSum* exchange) {
  const bool some_count = std::any_of(counted.begin(), counted.end(),
                                      [](const at::Tensor& gradient) { return gradient.defined(); });
  const at::ScalarType type = model_.model.precision.full;
  at::Tensor norms =
      some_count ? norms_on_device(counted) : at::zeros({static_cast<std::int64_t>(counted.size())}, type);
  if (exchange != nullptr) {
    norms = among_all(norms);
    exchange->add(norms);
    exchange->finish();
  }
  const LateNorm heard = std::make_shared<std::optional<double>>();
  outcomes_[group.index()].late_norm = heard;
  if (exchange == nullptr && transport_.world() > 1) {
    // Heard in another segment, whose program may have another placement object: by value.
    late_norms_.add(norms, [heard, &transport = transport_, &model = model_, placement = *placement_, type,
                            step](const std::vector<double>& known) {
      const std::vector<double> all = gather_norms(transport, placement, model.parameter_counts, known);
      *heard = norm_of(all, model.norm_order, at::TensorOptions(type));
      end_if_not_finite(transport, model, step, **heard, all);
    });
    return;
  }
  const at::Tensor norm = norm_of(norms, norm_order_);
  late_norms_.add(at::cat({norms, norm.view({1})}),
                  [heard, &transport = transport_, &model = model_, step](std::vector<double> known) {
                    *heard = known.back();
                    known.pop_back();
                    end_if_not_finite(transport, model, step, **heard, known);
                  });
  const double limit = options_.gradient_clipping;
  if (limit > 0) multiply(all_gradients(group), clip_factor(norm, limit));
}

at::Tensor StepGate::among_all(const at::Tensor& norms) const {
  const std::vector<int>& counts = model_.parameter_counts;
  const at::Tensor all = at::zeros({model_.parameters()}, norms.options().device(options_.device));
  std::int64_t to = 0;
  std::int64_t from = 0;
  for (std::size_t stage = 0; stage < counts.size(); ++stage) {
    if (norms.is_cpu()) break;  // the rank brings none
    if (placement_->ranks[stage].front() == transport_.rank()) {
      all.narrow(0, to, counts[stage]).copy_(norms.narrow(0, from, counts[stage]));
      from += counts[stage];
    }
    to += counts[stage];
  }
  return all;
}

bool StepGate::skips(std::size_t stage, Group group, std::int64_t step) {
  GateOutcome& outcome = outcomes_[group.index()];
  if (outcome.agreed) return outcome.skipped;
  Tensors gradients;
  append_gradients(stages_[stage], group, gradients);
  const StageId id = stages_[stage].id();
  const auto before = model_.parameter_counts.begin();
  const auto error = [&model = model_, step, first = std::accumulate(before, before + id.value, 0)](
                         std::size_t at, double value) {
    return gradient_not_finite(model.model, model.stage_layers, step, static_cast<std::size_t>(first) + at,
                               value);
  };
  const bool stops = options_.on_overflow == OnOverflow::stop;
  if (stops && !options_.device.is_cpu()) {
    // The device may be behind: until it has answered, the run goes on with weights that nothing saves.
    late_checks_.add(gradients, [error](std::size_t at, double value) { throw error(at, value); });
    return false;
  }
  const Look look = std::exchange(looks_[stage], {});
  const auto found = look.made ? look.not_finite : last_not_finite(gradients, [this] { progress(); });
  if (!found) return false;
  if (stops) throw error(*found, norms_of({gradients[*found]}, [this] { progress(); }).front());
  if (id.value == 0) outcome.skipped = true;
  return true;
}

void StepGate::check_skips(const Stage& stage, std::int64_t step) const {
  if (!scale_ && stage.skips_in_a_row() >= kMostSkipsInARow) throw too_many_skips(step, stage.id());
}

void StepGate::settle() {
  late_checks_.look_at_all();
  late_norms_.hear_all();
}

}  // namespace stagecraft
