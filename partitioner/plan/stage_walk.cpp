#include "partitioner/plan/stage_walk.h"

#include "base/error.h"

#include <algorithm>
#include <cmath>

namespace stagecraft {

StageWalk::StageWalk(const Measurement& measurement, int first, double optimizer_bytes_per_parameter_byte)
    : measurement_(measurement),
      first_(first),
      next_(first),
      gradient_from_(measurement.gradient_from()),
      optimizer_factor_(optimizer_bytes_per_parameter_byte) {
  STAGECRAFT_CHECK(first >= 0 && first < static_cast<int>(measurement.layers.size()), "no such layer");
  sums_.input = measurement.input_of(first);
  if (first == 0) {
    sums_.read = measurement.read;
  } else {
    for (const OutputProfile& value : measurement.layers[to_size(first - 1)].outputs) {
      sent_.push_back({0, value.bytes, value.has_gradient});
    }
  }
  if (sent_.size() < 2) sent_ = {{0, sums_.input, true}};
}

StageWalk::Level StageWalk::level_of(const LayerProfile& layer) const {
  if (!layer.inputs.empty()) return {layer, layer.inputs, layer.outputs, sent_};
  const bool has_weights = layer.parameters > Bytes{};
  InputProfile input;
  input.kept = layer.keeps_input;
  input.kept_for_weight = layer.weight_half_keeps_input.value_or(has_weights);
  OutputProfile output;
  output.bytes = layer.output;
  output.kept = layer.keeps_output;
  output.kept_for_weight = layer.weight_half_keeps_output.value_or(has_weights);
  output.gradient_kept = layer.weight_half_keeps_gradient;
  if (layer.output_is_input) {
    output.same_as = input.gradient_of = 0;
  } else {
    input.makes_gradient = makes_gradient(next_);
  }
  return {layer, {input}, {output}, sent_};
}

void StageWalk::extend() {
  STAGECRAFT_CHECK(next_ < static_cast<int>(measurement_.layers.size()), "the model has no more layers");
  const LayerProfile& layer = measurement_.layers[to_size(next_)];
  const Level& level = levels_.emplace_back(level_of(layer));
  STAGECRAFT_CHECK(level.inputs.size() == sent_.size(), "a row of other inputs than the outputs before it");
  add_times(layer);
  Bytes added = layer.kept_for_input + layer.forward_transient;
  sent_.clear();
  for (const OutputProfile& output : level.outputs) {
    std::size_t storage = storages_.size();
    if (output.same_as) {
      storage = level.before[to_size(*output.same_as)].storage;
    } else {
      storages_.push_back({output.bytes});
      added += output.bytes;
    }
    sent_.push_back({storage, output.bytes, output.has_gradient});
  }
  sums_.forward_peak = std::max(sums_.forward_peak, kept_ + bytes_of(level.before, false) + added);
  unkept_peak_ = std::max(unkept_peak_, bytes_of(level.before, true) + added);
  kept_ += layer.kept_for_input;
  for (std::size_t i = 0; i < level.inputs.size(); ++i) {
    keep(level.before[i].storage, level.inputs[i].kept, level.inputs[i].kept_for_weight);
  }
  for (std::size_t i = 0; i < level.outputs.size(); ++i) {
    keep(sent_[i].storage, level.outputs[i].kept, level.outputs[i].kept_for_weight);
  }
  levels_.back().kept = kept_;
  ++next_;
}

void StageWalk::add_times(const LayerProfile& layer) {
  sums_.forward += layer.forward.median;
  sums_.backward_input += layer.backward_input.median;
  sums_.backward_weight += layer.backward_weight.median;
  sums_.step += layer.step.median;
  // Layers vary independently of each other, as they were measured: their ranges add in squares.
  const auto add_spread = [&](Seconds StageSpread::*part, Seconds spread) {
    if (spread == Seconds{}) return;
    if (!sums_.spread) sums_.spread.emplace();
    Seconds& sum = *sums_.spread.*part;
    sum = Seconds{std::hypot(sum.value, spread.value)};
  };
  add_spread(&StageSpread::forward, layer.forward.spread);
  add_spread(&StageSpread::backward_input, layer.backward_input.spread);
  add_spread(&StageSpread::backward_weight, layer.backward_weight.spread);
  add_spread(&StageSpread::step, layer.step.spread);
  sums_.parameters += layer.parameters;
  sums_.compute_copy += layer.compute_copy;
  sums_.buffers += layer.buffers;
  if (layer.optimizer) {
    sums_.optimizer_state += *layer.optimizer;
  } else {
    by_factor_ += layer.parameters;
  }
  if (layer.step_transient)
    sums_.step_peak = std::max(sums_.step_peak.value_or(Bytes{}), *layer.step_transient);
  for (const std::string& field : layer.fields) {
    if (fields_.insert(field).second) sums_.fields += measurement_.field_bytes(field);
  }
}

/// By the last level.
void StageWalk::keep(std::size_t storage, bool kept, bool for_weight) {
  if (!kept) return;
  Storage& keeps = storages_[storage];
  const std::size_t level = levels_.size() - 1;
  if (keeps.kept_from == kNobody) kept_ += keeps.bytes;
  keeps.kept_from = std::min(keeps.kept_from, level);
  if (for_weight) keeps.weight_from = std::min(keeps.weight_from, level);
}

/// Of the storages that a bundle lies in, each once.
Bytes StageWalk::bytes_of(const Bundle& bundle, bool kept_too) const {
  Bytes sum;
  for (auto value = bundle.begin(); value != bundle.end(); ++value) {
    const Storage& storage = storages_[value->storage];
    const bool counted = std::any_of(bundle.begin(), value,
                                     [&](const Value& other) { return other.storage == value->storage; });
    if (!counted && (kept_too || storage.kept_from == kNobody)) sum += storage.bytes;
  }
  return sum;
}

StageCosts StageWalk::costs() const {
  STAGECRAFT_CHECK(next_ > first_, "a stage needs a layer");
  StageCosts costs = sums_;
  costs.optimizer_state += Bytes{std::llround(static_cast<double>(by_factor_.value) * optimizer_factor_)};
  costs.output = levels_.back().layer.output;
  if (next_ == static_cast<int>(measurement_.layers.size())) costs.targets = measurement_.targets;
  const Storage& output = storages_[sent_.front().storage];
  const bool is_copied = sent_.size() > 1 || sent_.front().storage == 0;  // packed, or of views alone
  Bytes unkept_peak = unkept_peak_;
  if (is_copied) {
    costs.forward_peak = std::max(costs.forward_peak, kept_ + bytes_of(sent_, false) + costs.output);
    unkept_peak = std::max(unkept_peak, bytes_of(sent_, true) + costs.output);
  }
  costs.unkept_forward_peak = unkept_peak;
  costs.output_kept = !is_copied && output.kept_from != kNobody && costs.output > Bytes{};
  costs.kept_for_input = costs.output_kept ? kept_ - output.bytes : kept_;
  add_backward(costs, costs.kept_for_input + (costs.output_kept ? costs.output : Bytes{}));
  return costs;
}

/// From the last level back, with the gradients' storages. The first is the slot that the output's lies in.
void StageWalk::add_backward(StageCosts& costs, Bytes live_before) const {
  std::vector<Storage> gradients(1);                               // weight_from alone
  std::vector<std::size_t> behind(sent_.size(), 0), before, live;  // of each value the gradient
  const auto meet = [&](std::size_t gradient) {
    if (std::ranges::find(live, gradient) == live.end()) live.push_back(gradient);
  };
  const auto bytes_live = [&](bool kept_too) {
    Bytes sum;
    for (const std::size_t g : live) {
      if (kept_too || gradients[g].weight_from == kNobody) sum += gradients[g].bytes;
    }
    return sum;
  };
  // For weight halves, by level: what no level before it keeps for its backward, and what none keeps for them.
  std::vector<Bytes> waits(levels_.size()), weights(levels_.size());
  for (const Storage& storage : storages_) {
    if (storage.weight_from == kNobody) continue;
    waits[storage.kept_from] += storage.bytes;
    weights[storage.weight_from] += storage.bytes;
  }
  Bytes backward, input_half, waiting;  // the last: for the weight halves of levels behind alone
  const auto frozen = to_size(std::clamp(gradient_from_ - first_, 0, static_cast<int>(levels_.size())));
  for (std::size_t i = levels_.size(); i-- > frozen;) {
    const Level& level = levels_[i];
    live.clear();
    for (std::size_t k = 0; k < behind.size(); ++k) {
      if (level.outputs[k].has_gradient) meet(behind[k]);
    }
    before.assign(level.inputs.size(), 0);
    for (std::size_t k = 0; k < before.size(); ++k) {
      if (level.inputs[k].gradient_of) {
        before[k] = behind[to_size(*level.inputs[k].gradient_of)];
      } else if (level.inputs[k].makes_gradient) {
        before[k] = gradients.size();
        gradients.push_back({level.before[k].bytes});
        live.push_back(before[k]);
      }
    }
    const LayerProfile& layer = level.layer;
    backward = std::max(backward, level.kept + bytes_live(true) + layer.backward_transient);
    input_half = std::max(input_half, level.kept + waiting + bytes_live(false) +
                                          layer.backward_input_transient.value_or(layer.backward_transient));
    waiting += layer.kept_for_weight + waits[i];
    for (std::size_t k = 0; k < behind.size(); ++k) {
      if (!level.outputs[k].has_gradient || !level.outputs[k].gradient_kept) continue;
      Storage& kept = gradients[behind[k]];
      if (kept.weight_from == kNobody) waiting += kept.bytes;
      kept.weight_from = i;
    }
    std::swap(behind, before);
  }
  costs.kept_for_weight = waiting;
  if (makes_gradient(
          first_)) {  // several gradients are packed; a single one that is the received one is copied
    live.clear();
    int count = 0;
    Bytes sent;
    for (std::size_t k = 0; k < behind.size(); ++k) {
      const Value& value = levels_.front().before[k];
      if (!value.has_gradient) continue;
      meet(behind[k]);
      sent = ++count == 1 ? value.bytes : costs.input;  // padding between values is in it
    }
    const bool is_slot = live.size() == 1 && gradients[live.front()].bytes == Bytes{};
    if (count > 1 || is_slot) {
      backward = std::max(backward, bytes_live(true) + sent);
      input_half = std::max(input_half, (count > 1 ? waiting + bytes_live(false) : Bytes{}) + sent);
    }
  }
  for (const Storage& gradient : gradients) {
    if (gradient.weight_from != kNobody) weights[gradient.weight_from] += gradient.bytes;
  }
  std::optional<Bytes> weight_half;
  Bytes kept;  // for weight halves up to the level
  for (std::size_t i = 0; i < levels_.size(); ++i) {
    const LayerProfile& layer = levels_[i].layer;
    kept += layer.kept_for_weight + weights[i];
    if (layer.parameters == Bytes{}) continue;
    const Bytes live_then = kept + layer.backward_weight_transient.value_or(layer.backward_transient);
    weight_half = std::max(weight_half.value_or(live_then), live_then);
  }
  const auto above = [](Bytes peak, Bytes held) { return std::max(Bytes{}, peak - held); };
  costs.backward_peak = above(backward, live_before);
  costs.backward_input_peak = above(input_half, live_before);
  costs.backward_weight_peak = above(weight_half.value_or(waiting), waiting);
}

StageCosts stage_costs(const Measurement& measurement, int first, int last,
                       double optimizer_bytes_per_parameter_byte) {
  StageWalk walk(measurement, first, optimizer_bytes_per_parameter_byte);
  while (walk.last() < last) walk.extend();
  return walk.costs();
}

}  // namespace stagecraft
