#pragma once

// The memory of a stage between whose layers bundles go on, followed storage by storage with sets: what
// StageWalk finds without them.

#include "base/error.h"
#include "partitioner/plan/profile.h"

#include <algorithm>
#include <limits>
#include <set>
#include <vector>

namespace stagecraft::test {

/// What of a stage's costs is activation memory.
struct ActivationBytes {
  Bytes kept_for_input, kept_for_weight;
  bool output_kept = false;
  Bytes forward_peak, unkept_forward_peak, backward_peak, backward_input_peak, backward_weight_peak;
};

namespace storage_walk {

inline constexpr int kNobody = std::numeric_limits<int>::max();
inline constexpr int kNone = -1;

/// Activations and gradients alike.
struct Storage {
  Bytes bytes;                                   ///< 0 for what lies in a slot
  int kept_from = kNobody;                       ///< the first layer that keeps it for its backward
  int weight_from = kNobody, weight_to = kNone;  ///< the first and the last whose weight half does
};

/// A tensor that goes on: where it lies, and in backward where its gradient does.
struct Carried {
  int storage = kNone;
  int gradient = kNone;
  Bytes bytes;
  bool has_gradient = true;
};
using CarriedBundle = std::vector<Carried>;

/// A row, whether it says so value by value or as chains do.
struct Row {
  std::vector<InputProfile> inputs;
  std::vector<OutputProfile> outputs;
};

inline Row row_of(const LayerProfile& layer, bool makes_gradient) {
  if (!layer.inputs.empty()) return {layer.inputs, layer.outputs};
  const bool has_weights = layer.parameters > Bytes{};
  InputProfile input;
  input.kept = layer.keeps_input;
  input.kept_for_weight = layer.keeps_input && layer.weight_half_keeps_input.value_or(has_weights);
  OutputProfile output;
  output.bytes = layer.output;
  output.kept = layer.keeps_output;
  output.kept_for_weight = layer.keeps_output && layer.weight_half_keeps_output.value_or(has_weights);
  output.gradient_kept = layer.weight_half_keeps_gradient;
  if (layer.output_is_input) {
    output.same_as = 0;
    input.gradient_of = 0;
  } else {
    input.makes_gradient = makes_gradient;
  }
  return {{input}, {output}};
}

class Walk {
 public:
  Walk(const Measurement& measurement, int first, int last)
      : measurement_(measurement), first_(first), last_(last) {
    STAGECRAFT_CHECK(0 <= first && first < last && last <= static_cast<int>(measurement.layers.size()),
                     "no such stage");
  }

  ActivationBytes run() {
    bundles_.push_back(received());
    for (int layer = first_; layer < last_; ++layer) forward(layer);
    end_forward();
    found_.kept_for_weight = kept_for_weight_up_to(last_);  // gradients come to it in backward
    const Bytes live_before = found_.kept_for_input + (found_.output_kept ? output_bytes_ : Bytes{});
    for (int layer = last_; layer-- > first_;) backward(layer);
    end_backward();
    found_.kept_for_weight = kept_for_weight_up_to(last_);
    const auto above = [](Bytes peak, Bytes before) { return std::max(Bytes{}, peak - before); };
    found_.backward_peak = above(backward_, live_before);
    found_.backward_input_peak = above(input_half_, live_before);
    Bytes weight_half = found_.kept_for_weight;
    bool any = false;
    for (int layer = first_; layer < last_; ++layer) {
      const LayerProfile& its = profile(layer);
      if (its.parameters == Bytes{}) continue;
      const Bytes live =
          kept_for_weight_up_to(layer + 1) + its.backward_weight_transient.value_or(its.backward_transient);
      weight_half = any ? std::max(weight_half, live) : live;
      any = true;
    }
    found_.backward_weight_peak = above(weight_half, found_.kept_for_weight);
    return found_;
  }

 private:
  [[nodiscard]] const LayerProfile& profile(int layer) const {
    return measurement_.layers[static_cast<std::size_t>(layer)];
  }
  [[nodiscard]] CarriedBundle& before(int layer) {
    return bundles_[static_cast<std::size_t>(layer - first_)];
  }
  Storage& at(int storage) { return storages_[static_cast<std::size_t>(storage)]; }
  int add(Bytes bytes) {
    storages_.push_back({bytes});
    return static_cast<int>(storages_.size()) - 1;
  }

  /// What enters the stage lies in a slot.
  CarriedBundle received() {
    const int slot = add(Bytes{});
    if (first_ > 0 && profile(first_ - 1).outputs.size() > 1) {
      CarriedBundle bundle;
      for (const OutputProfile& value : profile(first_ - 1).outputs) {
        bundle.push_back({slot, kNone, value.bytes, value.has_gradient});
      }
      return bundle;
    }
    return {{slot, kNone, measurement_.input_of(first_), true}};
  }

  void forward(int layer) {
    const LayerProfile& its = profile(layer);
    const Row& row = rows_.emplace_back(row_of(its, layer > 0));
    CarriedBundle& inputs = bundles_.back();
    STAGECRAFT_CHECK(row.inputs.size() == inputs.size(), "a row of other inputs than the outputs before it");
    CarriedBundle outputs;
    Bytes own;
    for (const OutputProfile& output : row.outputs) {
      if (!output.same_as) own += output.bytes;
      outputs.push_back(
          {output.same_as ? inputs[static_cast<std::size_t>(*output.same_as)].storage : add(output.bytes),
           kNone, output.bytes, output.has_gradient});
    }
    const Bytes added = its.kept_for_input + own + its.forward_transient;
    found_.forward_peak = std::max(found_.forward_peak, kept_so_far_ + live(inputs, layer) + added);
    found_.unkept_forward_peak = std::max(found_.unkept_forward_peak, live(inputs, kNone) + added);
    kept_so_far_ += its.kept_for_input;
    const auto keep = [&](int storage, bool kept, bool for_weight) {
      Storage& kept_storage = at(storage);
      if (kept) kept_storage.kept_from = std::min(kept_storage.kept_from, layer);
      if (!kept || !for_weight) return;
      kept_storage.weight_from = std::min(kept_storage.weight_from, layer);
      kept_storage.weight_to = std::max(kept_storage.weight_to, layer);
    };
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      keep(inputs[i].storage, row.inputs[i].kept, row.inputs[i].kept_for_weight);
    }
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      keep(outputs[i].storage, row.outputs[i].kept, row.outputs[i].kept_for_weight);
    }
    bundles_.push_back(std::move(outputs));
  }

  void end_forward() {
    const CarriedBundle& sent = bundles_.back();
    const bool is_packed = sent.size() > 1;
    const bool is_view = !is_packed && sent.front().storage == 0;
    output_bytes_ = profile(last_ - 1).output;
    if (is_packed || is_view) {  // what is sent is a copy
      found_.forward_peak = std::max(found_.forward_peak, kept_so_far_ + live(sent, last_) + output_bytes_);
      found_.unkept_forward_peak = std::max(found_.unkept_forward_peak, live(sent, kNone) + output_bytes_);
    }
    found_.kept_for_input = kept_so_far_ + kept_storages(last_);
    const Storage& output = at(sent.front().storage);
    found_.output_kept = !is_packed && !is_view && output.kept_from < last_ && output_bytes_ > Bytes{};
    if (found_.output_kept) found_.kept_for_input = found_.kept_for_input - output.bytes;
    const int slot = add(Bytes{});
    for (Carried& value : bundles_.back()) value.gradient = slot;
  }

  /// The bundle's storages, and those that layers before `layer` keep.
  Bytes live(const CarriedBundle& bundle, int layer) {
    std::set<int> counted;
    for (const Carried& value : bundle) counted.insert(value.storage);
    for (std::size_t i = 0; i < storages_.size(); ++i) {
      if (storages_[i].kept_from < layer) counted.insert(static_cast<int>(i));
    }
    return sum_of(counted);
  }
  /// Kept by layers before `layer`.
  Bytes kept_storages(int layer) { return live({}, layer); }
  Bytes sum_of(const std::set<int>& counted) {
    Bytes sum;
    for (const int storage : counted) sum += at(storage).bytes;
    return sum;
  }

  [[nodiscard]] Bytes kept_for_weight_up_to(int layer) const {
    Bytes sum;
    for (int i = first_; i < layer; ++i) sum += profile(i).kept_for_weight;
    for (const Storage& storage : storages_) {
      if (storage.weight_from < layer) sum += storage.bytes;
    }
    return sum;
  }

  void backward(int layer) {
    const LayerProfile& its = profile(layer);
    const Row& row = rows_[static_cast<std::size_t>(layer - first_)];
    CarriedBundle& inputs = before(layer);
    const CarriedBundle& outputs = before(layer + 1);
    std::set<int> gradients;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (!outputs[i].has_gradient) continue;
      gradients.insert(outputs[i].gradient);
      if (!row.outputs[i].gradient_kept) continue;
      Storage& kept = at(outputs[i].gradient);
      kept.weight_from = std::min(kept.weight_from, layer);
      kept.weight_to = std::max(kept.weight_to, layer);
    }
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (row.inputs[i].gradient_of) {
        inputs[i].gradient = outputs[static_cast<std::size_t>(*row.inputs[i].gradient_of)].gradient;
      } else if (row.inputs[i].makes_gradient) {
        inputs[i].gradient = add(inputs[i].bytes);
        gradients.insert(inputs[i].gradient);
      }
    }
    backward_ = std::max(backward_, kept_so_far_ + with_kept(gradients, layer) + its.backward_transient);
    Bytes behind;
    for (int i = layer + 1; i < last_; ++i) behind += profile(i).kept_for_weight;
    input_half_ = std::max(input_half_, kept_so_far_ + behind + with_kept(gradients, layer, layer) +
                                            its.backward_input_transient.value_or(its.backward_transient));
    kept_so_far_ = kept_so_far_ - its.kept_for_input;
  }

  /// `storages`, those that layers up to `layer` keep, and those that weight halves behind `behind` need.
  Bytes with_kept(std::set<int> storages, int layer, int behind = kNobody) {
    for (std::size_t i = 0; i < storages_.size(); ++i) {
      const bool waits = storages_[i].weight_to != kNone && storages_[i].weight_to > behind;
      if (storages_[i].kept_from <= layer || waits) storages.insert(static_cast<int>(i));
    }
    return sum_of(storages);
  }

  /// Several gradients are packed; a single one that is the received one is copied.
  void end_backward() {
    if (first_ == 0) return;
    std::set<int> gradients;
    Bytes sum;
    int count = 0;
    for (const Carried& value : before(first_)) {
      if (!value.has_gradient) continue;
      gradients.insert(value.gradient);
      sum += value.bytes;
      ++count;
    }
    const bool is_slot = gradients.size() == 1 && at(*gradients.begin()).bytes == Bytes{};
    if (count < 2 && !is_slot) return;
    if (count > 1) sum = measurement_.input_of(first_);  // padding between values is in it
    backward_ = std::max(backward_, sum_of(gradients) + sum);
    Bytes behind;
    for (int i = first_; i < last_; ++i) behind += profile(i).kept_for_weight;
    const Bytes waiting = count > 1 ? behind + with_kept(gradients, kNone, kNone) : Bytes{};
    input_half_ = std::max(input_half_, waiting + sum);
  }

  const Measurement& measurement_;
  int first_, last_;
  std::vector<Storage> storages_;
  std::vector<CarriedBundle> bundles_;  ///< before each layer, and behind the last
  std::vector<Row> rows_;
  Bytes kept_so_far_;  ///< of rows: what is neither input nor output
  Bytes output_bytes_;
  Bytes backward_, input_half_;
  ActivationBytes found_;
};

}  // namespace storage_walk

/// Of layers [first, last), at least one.
[[nodiscard]] inline ActivationBytes activation_bytes(const Measurement& measurement, int first, int last) {
  return storage_walk::Walk(measurement, first, last).run();
}

}  // namespace stagecraft::test
