#include "engine/core/step_gate.h"

#include "base/error.h"
#include "engine/core/clipping.h"
#include "engine/core/overflow.h"

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
std::vector<double> gather_squares(Transport& transport, const Placement& placement,
                                   const std::vector<int>& parameter_counts,
                                   const std::vector<double>& mine) {
  const std::vector<std::vector<double>> all = transport.all_gather(mine);
  std::vector<double> squares;
  std::vector<std::size_t> next(all.size(), 0);
  for (std::size_t s = 0; s < parameter_counts.size(); ++s) {
    const std::size_t rank = placement.ranks[s].front().index();
    for (int k = 0; k < parameter_counts[s]; ++k) squares.push_back(all[rank].at(next[rank]++));
  }
  return squares;
}

/// Of the last parameter whose gradient is not finite.
NotFiniteError norm_not_finite(const StagedModel& model, std::int64_t step,
                               const std::vector<double>& squares) {
  std::size_t at = squares.size() - 1;
  while (at > 0 && std::isfinite(squares[at])) --at;
  return gradient_not_finite(model.model, model.stage_layers, step, at, squares[at]);
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
      looks_(stages.size()) {}

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
    if (model_.model.ties.empty()) {
      append_gradients(stage, group, counted);
      continue;
    }
    for (int layer = stage.first_layer(); layer < stage.last_layer(); ++layer) {
      const Tensors& gradients = stage.gradients(group, layer);
      for (std::size_t i = 0; i < gradients.size(); ++i) {
        counted.push_back(model_.model.owns(layer, static_cast<int>(i)) ? gradients[i] : at::Tensor());
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
    if (const auto exchange = transport_.make_sum(all, Tag::squares(group)))
      return launch_norm(group, step, counted, exchange.get());
  }
  const std::vector<double> squares = gather_squares(transport_, *placement_, model_.parameter_counts,
                                                     sums_of_squares(counted, [this] { progress(); }));
  const double scale = scale_ ? scale_->value() : 1;
  const double norm = norm_of(squares, options_.device) / scale;
  outcome.skipped = !std::isfinite(norm);
  if (scale_) {
    outcome.loss_scale = scale;
    scale_->update(outcome.skipped);
  } else if (outcome.skipped && options_.on_overflow == OnOverflow::stop) {
    throw norm_not_finite(model_, step, squares);
  }
  if (outcome.skipped) return;
  outcome.norm = norm;
  const double limit = options_.gradient_clipping;
  const double factor = (limit > 0 ? clip_factor(norm, limit) : 1) / scale;
  if (factor != 1) multiply(all_gradients(group), factor);
}

void StepGate::launch_norm(Group group, std::int64_t step, const Tensors& counted, ReplicaSum* exchange) {
  const bool some_count = std::any_of(counted.begin(), counted.end(),
                                      [](const at::Tensor& gradient) { return gradient.defined(); });
  at::Tensor squares = some_count ? squares_on_device(counted)
                                  : at::zeros({static_cast<std::int64_t>(counted.size())}, at::kDouble);
  if (exchange != nullptr) {
    squares = among_all(squares);
    exchange->add(squares);
    exchange->finish();
  }
  const LateNorm heard = std::make_shared<std::optional<double>>();
  outcomes_[group.index()].late_norm = heard;
  // Heard in another segment, whose program may have another placement object: by value.
  late_norms_.add(squares, [heard, &transport = transport_, &model = model_, placement = *placement_,
                            device = options_.device, exchanged = exchange != nullptr,
                            step](const std::vector<double>& known) {
    const std::vector<double> all =
        exchanged ? known : gather_squares(transport, placement, model.parameter_counts, known);
    *heard = norm_of(all, device);
    if (std::isfinite(**heard)) return;
    transport.barrier();  // all have found the same: none hears of another's end first
    throw norm_not_finite(model, step, all);
  });
  const double limit = options_.gradient_clipping;
  if (limit > 0 && (some_count || exchange != nullptr)) {
    multiply(all_gradients(group), clip_factor(norm_of(squares), limit));
  }
}

at::Tensor StepGate::among_all(const at::Tensor& squares) const {
  const std::vector<int>& counts = model_.parameter_counts;
  const std::int64_t total = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  const at::Tensor all = at::zeros({total}, at::TensorOptions(options_.device).dtype(at::kDouble));
  std::int64_t to = 0;
  std::int64_t from = 0;
  for (std::size_t stage = 0; stage < counts.size(); ++stage) {
    if (squares.is_cpu()) break;  // the rank brings none
    if (placement_->ranks[stage].front() == transport_.rank()) {
      all.narrow(0, to, counts[stage]).copy_(squares.narrow(0, from, counts[stage]));
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
  if (stops) throw error(*found, sums_of_squares({gradients[*found]}, [this] { progress(); }).front());
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
