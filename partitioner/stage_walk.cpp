#include "partitioner/stage_walk.h"

#include <algorithm>
#include <cmath>

namespace stagecraft {

StageWalk::StageWalk(const Measurement& measurement, int first, double optimizer_bytes_per_parameter_byte)
    : measurement_(measurement),
      first_(first),
      next_(first),
      optimizer_factor_(optimizer_bytes_per_parameter_byte) {
  STAGECRAFT_CHECK(first >= 0 && first < static_cast<int>(measurement.layers.size()), "no such layer");
  sums_.input =
      first == 0 ? measurement.input : measurement.layers[static_cast<std::size_t>(first - 1)].output;
}

void StageWalk::extend() {
  STAGECRAFT_CHECK(next_ < static_cast<int>(measurement_.layers.size()), "the model has no more layers");
  const LayerProfile& layer = measurement_.layers[static_cast<std::size_t>(next_)];
  const Bytes input =
      next_ == 0 ? measurement_.input : measurement_.layers[static_cast<std::size_t>(next_ - 1)].output;

  sums_.forward += layer.forward.median;
  sums_.backward_input += layer.backward_input.median;
  sums_.backward_weight += layer.backward_weight.median;
  sums_.step += layer.step.median;
  add_spread(layer);
  sums_.parameters += layer.parameters;
  sums_.buffers += layer.buffers;
  sums_.kept_for_weight += layer.kept_for_weight;

  const Bytes added = layer.kept_for_input + (layer.output_is_input ? Bytes{} : layer.output);
  sums_.forward_peak =
      std::max(sums_.forward_peak, closed_ + boundary_.bytes + added + layer.forward_transient);

  closed_ += layer.kept_for_input;
  leave_boundary(layer);
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
  const auto keep = [&](bool keeps) {
    boundary_.kept = boundary_.kept || keeps;
    boundary_.kept_for_weight = boundary_.kept_for_weight || (keeps && has_weights);
  };
  keep(layer.keeps_input);
  if (!layer.output_is_input) {
    if (boundary_.kept) closed_ += boundary_.bytes;
    if (boundary_.kept_for_weight) sums_.kept_for_weight += boundary_.bytes;
    boundary_ = Boundary{layer.output, false, false, false};
  }
  keep(layer.keeps_output);
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
}

StageCosts StageWalk::costs() const {
  STAGECRAFT_CHECK(next_ > first_, "a stage needs a layer");
  StageCosts costs = sums_;
  costs.optimizer_state =
      Bytes{std::llround(static_cast<double>(costs.parameters.value) * optimizer_factor_)};
  costs.output = measurement_.layers[static_cast<std::size_t>(next_ - 1)].output;
  if (next_ == static_cast<int>(measurement_.layers.size())) costs.targets = measurement_.targets;
  costs.output_kept = boundary_.kept && !boundary_.is_input && costs.output > Bytes{};
  costs.kept_for_input = closed_;
  if (boundary_.kept_for_weight) costs.kept_for_weight += boundary_.bytes;
  const Bytes live_before = closed_ + (boundary_.kept ? boundary_.bytes : Bytes{});
  Bytes backward = std::max(settled_, pending_slot_);
  if (boundary_.is_input) {  // only views: what is sent is a copy, either way
    costs.forward_peak = std::max(costs.forward_peak, closed_ + costs.output);
    if (first_ > 0) backward = std::max(backward, costs.input);
  }
  costs.backward_peak = std::max(Bytes{}, backward - live_before);
  return costs;
}

StageCosts stage_costs(const Measurement& measurement, int first, int last,
                       double optimizer_bytes_per_parameter_byte) {
  StageWalk walk(measurement, first, optimizer_bytes_per_parameter_byte);
  while (walk.last() < last) walk.extend();
  return walk.costs();
}

}  // namespace stagecraft
