#include "stagecraft/partitioner/stage_walk.h"

#include "stagecraft/base/error.h"
#include "stagecraft/partitioner/bundle_walk.h"

#include <algorithm>
#include <cmath>

namespace stagecraft {
namespace {

void raise(std::optional<Bytes>& most, Bytes bytes) { most = std::max(most.value_or(bytes), bytes); }

}  // namespace

StageWalk::StageWalk(const Measurement& measurement, int first, double optimizer_bytes_per_parameter_byte)
    : measurement_(measurement),
      first_(first),
      next_(first),
      optimizer_factor_(optimizer_bytes_per_parameter_byte) {
  STAGECRAFT_CHECK(first >= 0 && first < static_cast<int>(measurement.layers.size()), "no such layer");
  sums_.input = measurement.input_of(first);
  boundary_.gradient = sums_.input;
  if (first == 0) sums_.read = measurement.read;
}

void StageWalk::extend() {
  STAGECRAFT_CHECK(next_ < static_cast<int>(measurement_.layers.size()), "the model has no more layers");
  const LayerProfile& layer = measurement_.layers[static_cast<std::size_t>(next_)];
  const Bytes input = measurement_.input_of(next_);
  has_bundles_ = has_bundles_ || !layer.inputs.empty();

  sums_.forward += layer.forward.median;
  sums_.backward_input += layer.backward_input.median;
  sums_.backward_weight += layer.backward_weight.median;
  sums_.step += layer.step.median;
  add_spread(layer);
  sums_.parameters += layer.parameters;
  sums_.compute_copy += layer.compute_copy;
  sums_.buffers += layer.buffers;
  if (layer.optimizer) {
    sums_.optimizer_state += *layer.optimizer;
  } else {
    by_factor_ += layer.parameters;
  }
  if (layer.step_transient) raise(sums_.step_peak, *layer.step_transient);
  for (const std::string& field : layer.fields) {
    if (fields_.insert(field).second) sums_.fields += measurement_.field_bytes(field);
  }

  const Bytes added = layer.kept_for_input + (layer.output_is_input ? Bytes{} : layer.output);
  sums_.forward_peak =
      std::max(sums_.forward_peak, closed_ + boundary_.bytes + added + layer.forward_transient);

  unkept_peak_ = std::max(unkept_peak_, boundary_.bytes + added + layer.forward_transient);

  closed_ += layer.kept_for_input;
  leave_boundary(layer);
  sums_.kept_for_weight += layer.kept_for_weight;
  add_backward(layer, input);
  ++next_;
}

/// Layers vary independently of each other, as they were measured: their ranges add in squares.
void StageWalk::add_spread(const LayerProfile& layer) {
  const auto add = [&](Seconds StageSpread::*part, Seconds spread) {
    if (spread == Seconds{}) return;
    if (!sums_.spread) sums_.spread.emplace();
    Seconds& sum = *sums_.spread.*part;
    sum = Seconds{std::hypot(sum.value, spread.value)};
  };
  add(&StageSpread::forward, layer.forward.spread);
  add(&StageSpread::backward_input, layer.backward_input.spread);
  add(&StageSpread::backward_weight, layer.backward_weight.spread);
  add(&StageSpread::step, layer.step.spread);
}

/// Passes from the layer's input to its output; the input's storage stays behind if anybody keeps it.
void StageWalk::leave_boundary(const LayerProfile& layer) {
  const bool has_weights = layer.parameters > Bytes{};
  const auto keep = [&](bool keeps, const std::optional<bool>& for_weight) {
    boundary_.kept = boundary_.kept || keeps;
    boundary_.kept_for_weight = boundary_.kept_for_weight || (keeps && for_weight.value_or(has_weights));
  };
  keep(layer.keeps_input, layer.weight_half_keeps_input);
  if (!layer.output_is_input) {
    close_boundary();
    boundary_ = Boundary{};
    boundary_.bytes = boundary_.gradient = layer.output;
    boundary_.is_input = false;
  }
  keep(layer.keeps_output, layer.weight_half_keeps_output);
  boundary_.gradient_kept = boundary_.gradient_kept || layer.weight_half_keeps_gradient;
}

/// A layer follows that makes the boundary's gradient, so that it takes bytes of its own.
void StageWalk::close_boundary() {
  if (boundary_.kept) closed_ += boundary_.bytes;
  if (boundary_.kept_for_weight) sums_.kept_for_weight += boundary_.bytes;
  if (boundary_.gradient_kept) sums_.kept_for_weight += boundary_.gradient;
  if (!boundary_.input_half) return;  // no layer ends in it: the stage's input, read by no view
  const Bytes input_half =
      *(boundary_.kept_for_weight ? boundary_.input_half_for_weight : boundary_.input_half);
  raise(input_half_, input_half + boundary_.gradient - sums_.kept_for_weight);
  if (!boundary_.weight_half) return;
  raise(weight_half_, *boundary_.weight_half + (boundary_.gradient_kept ? boundary_.gradient : Bytes{}));
}

void StageWalk::add_backward(const LayerProfile& layer, Bytes input) {
  const bool makes_gradient = next_ > 0 && !layer.output_is_input;
  const Bytes live = closed_ + (boundary_.kept ? boundary_.bytes : Bytes{}) +
                     (makes_gradient ? input : Bytes{}) + layer.backward_transient;
  if (!layer.output_is_input) {
    settled_ = std::max(settled_, pending_own_);
    pending_own_ = pending_slot_ = Bytes{};
  }
  pending_own_ = std::max(pending_own_, live + layer.output);
  pending_slot_ = std::max(pending_slot_, live);
  add_halves(layer, makes_gradient ? input : Bytes{});
}

void StageWalk::add_halves(const LayerProfile& layer, Bytes gradient_made) {
  const Bytes input_half =
      closed_ + gradient_made + layer.backward_input_transient.value_or(layer.backward_transient);
  raise(boundary_.input_half, input_half + (boundary_.kept ? boundary_.bytes : Bytes{}));
  raise(boundary_.input_half_for_weight, input_half + boundary_.bytes);
  if (layer.parameters == Bytes{}) return;
  raise(boundary_.weight_half, sums_.kept_for_weight +
                                   (boundary_.kept_for_weight ? boundary_.bytes : Bytes{}) +
                                   layer.backward_weight_transient.value_or(layer.backward_transient));
}

StageCosts StageWalk::costs_of_bundles() const {
  StageCosts costs = sums_;
  const ActivationBytes bytes = activation_bytes(measurement_, first_, next_);
  costs.kept_for_input = bytes.kept_for_input;
  costs.kept_for_weight = bytes.kept_for_weight;
  costs.output_kept = bytes.output_kept;
  costs.forward_peak = bytes.forward_peak;
  costs.unkept_forward_peak = bytes.unkept_forward_peak;
  costs.backward_peak = bytes.backward_peak;
  costs.backward_input_peak = bytes.backward_input_peak;
  costs.backward_weight_peak = bytes.backward_weight_peak;
  return costs;
}

StageCosts StageWalk::costs() const {
  STAGECRAFT_CHECK(next_ > first_, "a stage needs a layer");
  StageCosts costs = has_bundles_ ? costs_of_bundles() : sums_;
  costs.optimizer_state += Bytes{std::llround(static_cast<double>(by_factor_.value) * optimizer_factor_)};
  costs.output = measurement_.layers[static_cast<std::size_t>(next_ - 1)].output;
  if (next_ == static_cast<int>(measurement_.layers.size())) costs.targets = measurement_.targets;
  if (has_bundles_) return costs;
  costs.output_kept = boundary_.kept && !boundary_.is_input && costs.output > Bytes{};
  costs.kept_for_input = closed_;
  if (boundary_.kept_for_weight) costs.kept_for_weight += boundary_.bytes;
  const Bytes live_before = closed_ + (boundary_.kept ? boundary_.bytes : Bytes{});
  Bytes backward = std::max(settled_, pending_slot_);
  Bytes unkept = unkept_peak_;
  if (boundary_.is_input) {  // only views: what is sent is a copy, either way
    costs.forward_peak = std::max(costs.forward_peak, closed_ + costs.output);
    unkept = std::max(unkept, costs.output);
    if (first_ > 0) backward = std::max(backward, costs.input);
  }
  costs.unkept_forward_peak = unkept;
  costs.backward_peak = std::max(Bytes{}, backward - live_before);
  // The boundary counts where anything keeps it; its gradient lies in a slot.
  Bytes input_half = *(boundary_.kept_for_weight ? boundary_.input_half_for_weight : boundary_.input_half);
  if (input_half_) input_half = std::max(input_half, *input_half_ + costs.kept_for_weight);
  if (boundary_.is_input && first_ > 0) input_half = std::max(input_half, costs.input);
  costs.backward_input_peak = std::max(Bytes{}, input_half - live_before);
  std::optional<Bytes> weight_half = weight_half_;
  if (boundary_.weight_half) raise(weight_half, *boundary_.weight_half);
  costs.backward_weight_peak =
      std::max(Bytes{}, weight_half.value_or(costs.kept_for_weight) - costs.kept_for_weight);
  return costs;
}

StageCosts stage_costs(const Measurement& measurement, int first, int last,
                       double optimizer_bytes_per_parameter_byte) {
  StageWalk walk(measurement, first, optimizer_bytes_per_parameter_byte);
  while (walk.last() < last) walk.extend();
  return walk.costs();
}

}  // namespace stagecraft
