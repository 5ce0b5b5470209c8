// stage_costs against an interpreter that runs a stage's forward and backward with named storages and a table
// of what is live: no prefix sums, no cases, so an error of the one cannot hide in the other.

#include "partitioner/plan/profile.h"
#include "test/partitioner/random_profile.h"
#include "test/partitioner/storage_walk.h"
#include "test/support/catch.h"

#include <fmt/format.h>
#include <rapidcheck.h>

#include <map>
#include <string>

namespace stagecraft {
namespace {

/// Live storages by name, with their highest sum.
class Heap {
 public:
  void hold(const std::string& name, Bytes bytes) {
    live_.emplace(name, bytes);
    peak_ = std::max(peak_, live());
  }
  void transient(Bytes bytes) { peak_ = std::max(peak_, live() + bytes); }
  void drop(const std::string& name) { live_.erase(name); }
  /// What took its place before, or within a transient.
  void hold_quietly(const std::string& name, Bytes bytes) { live_.emplace(name, bytes); }
  void forget_peak() { peak_ = live(); }
  [[nodiscard]] Bytes live() const {
    Bytes sum;
    for (const auto& [name, bytes] : live_) sum += bytes;
    return sum;
  }
  [[nodiscard]] Bytes peak() const { return peak_; }

 private:
  std::map<std::string, Bytes> live_;
  Bytes peak_;
};

struct Interpreted {
  Bytes kept;  ///< after forward, without the output
  Bytes forward_peak;
  Bytes backward_peak;  ///< above what is live when it starts
  Bytes kept_for_weight;
  Bytes input_half_peak, weight_half_peak;  ///< likewise
  bool output_kept = false;
};

Interpreted interpret(const Measurement& measurement, int first, int last) {
  const auto layer = [&](int i) -> const LayerProfile& {
    return measurement.layers[static_cast<std::size_t>(i)];
  };
  // storage[i]: number of the storage that boundary i lies in; the stage's input storage is `first`.
  std::map<int, int> storage{{first, first}};
  for (int i = first; i < last; ++i) storage[i + 1] = layer(i).output_is_input ? storage[i] : i + 1;
  const auto name = [&](int boundary) { return fmt::format("x{}", storage[boundary]); };
  const auto kept_by = [&](int s, int until) {
    for (int i = first; i < until; ++i) {
      if ((layer(i).keeps_input && storage[i] == s) || (layer(i).keeps_output && storage[i + 1] == s))
        return true;
    }
    return false;
  };
  const auto bytes_of = [&](int boundary) {
    return boundary == 0 ? measurement.input : layer(boundary - 1).output;
  };

  Heap forward;
  for (int i = first; i < last; ++i) {
    forward.hold(fmt::format("kept{}", i), layer(i).kept_for_input);
    if (storage[i + 1] != storage[i]) forward.hold(name(i + 1), bytes_of(i + 1));
    forward.transient(layer(i).forward_transient);
    if (storage[i + 1] != storage[i] && storage[i] != first && !kept_by(storage[i], last))
      forward.drop(name(i));
  }
  if (storage[last] == first) forward.hold("copy", bytes_of(last));  // what is sent must be its own
  Interpreted result;
  result.forward_peak = forward.peak();
  result.output_kept = storage[last] != first && kept_by(storage[last], last) && bytes_of(last) > Bytes{};
  Heap after = forward;
  after.drop(storage[last] != first ? name(last) : "copy");
  result.kept = after.live();

  Heap backward;
  for (int i = first; i < last; ++i) backward.hold(fmt::format("kept{}", i), layer(i).kept_for_input);
  for (int i = first + 1; i <= last; ++i) {
    if (storage[i] != first && kept_by(storage[i], last)) backward.hold(name(i), bytes_of(storage[i]));
  }
  const Bytes before = backward.live();
  Heap running = backward;
  // The gradient of storage[last] lies in a slot.
  for (int i = last - 1; i >= first; --i) {
    const bool view = storage[i] == storage[i + 1];
    if (!view && i > 0) running.hold(fmt::format("g{}", storage[i]), bytes_of(storage[i]));
    running.transient(layer(i).backward_transient);
    if (!view) running.drop(fmt::format("g{}", storage[i + 1]));
    running.drop(fmt::format("kept{}", i));
    for (int b = i; b <= last; ++b) {
      if (!kept_by(storage[b], i)) running.drop(fmt::format("x{}", storage[b]));
    }
  }
  if (storage[last] == first && first > 0) running.hold("copy", bytes_of(first));
  result.backward_peak = running.peak() - before;

  // Split. A weight half needs some of what backward needs, and the gradient of its layer's output.
  const auto has_weights = [&](int i) { return layer(i).parameters > Bytes{}; };
  const auto input_for_weight = [&](int i) {
    return layer(i).keeps_input && layer(i).weight_half_keeps_input.value_or(has_weights(i));
  };
  const auto output_for_weight = [&](int i) {
    return layer(i).keeps_output && layer(i).weight_half_keeps_output.value_or(has_weights(i));
  };
  const auto needed_for_weight = [&](int s, int from, int until) {
    for (int i = from; i < until; ++i) {
      if ((input_for_weight(i) && storage[i] == s) || (output_for_weight(i) && storage[i + 1] == s))
        return true;
    }
    return false;
  };
  const auto gradient_needed = [&](int s, int from, int until) {
    for (int i = from; i < until; ++i) {
      if (layer(i).weight_half_keeps_gradient && storage[i + 1] == s) return true;
    }
    return false;
  };
  Heap halves = backward;
  halves.forget_peak();
  for (int i = last - 1; i >= first; --i) {
    const bool view = storage[i] == storage[i + 1];
    if (!view && i > 0) halves.hold(fmt::format("g{}", storage[i]), bytes_of(storage[i]));
    halves.transient(layer(i).backward_input_transient.value_or(layer(i).backward_transient));
    if (!view && !gradient_needed(storage[i + 1], i, last)) halves.drop(fmt::format("g{}", storage[i + 1]));
    halves.drop(fmt::format("kept{}", i));
    halves.hold_quietly(fmt::format("weight{}", i), layer(i).kept_for_weight);
    for (int b = i; b <= last; ++b) {
      if (!kept_by(storage[b], i) && !needed_for_weight(storage[b], first, last)) {
        halves.drop(fmt::format("x{}", storage[b]));
      }
    }
  }
  halves.drop(fmt::format("g{}", storage[first]));  // sent
  if (storage[last] == first && first > 0) halves.hold("copy", bytes_of(first));
  halves.drop("copy");
  result.input_half_peak = halves.peak() - before;
  result.kept_for_weight = halves.live();
  halves.forget_peak();
  for (int i = last - 1; i >= first; --i) {
    if (has_weights(i)) {
      halves.transient(layer(i).backward_weight_transient.value_or(layer(i).backward_transient));
    }
    halves.drop(fmt::format("weight{}", i));
    for (int b = i; b <= last; ++b) {
      if (!needed_for_weight(storage[b], first, i)) halves.drop(fmt::format("x{}", storage[b]));
      if (b > first && !gradient_needed(storage[b], first, i)) halves.drop(fmt::format("g{}", storage[b]));
    }
  }
  result.weight_half_peak = halves.peak() - result.kept_for_weight;
  return result;
}

Measurement three_layers() {
  // linear (keeps input) -> relu (keeps output) -> linear
  Measurement m;
  m.input = Bytes{100};
  LayerProfile linear;
  linear.name = "a";
  linear.parameters = Bytes{1000};
  linear.output = Bytes{200};
  linear.weight_half_keeps_gradient = true;
  linear.keeps_input = true;
  linear.forward.median = Seconds{1};
  linear.backward_input.median = Seconds{2};
  linear.backward_weight.median = Seconds{3};
  LayerProfile relu;
  relu.name = "relu";
  relu.output = Bytes{200};
  relu.keeps_output = true;
  LayerProfile last = linear;
  last.name = "b";
  last.output = Bytes{40};
  m.layers = {linear, relu, last};
  return m;
}

}  // namespace

TEST_CASE("a tensor between two layers counts once, the stage's input and output not at all",
          "[stage_costs]") {
  const Measurement m = three_layers();
  const StageCosts all = stage_costs(m, 0, 3, 2);
  CHECK(all.forward == Seconds{2});
  CHECK(all.backward_input == Seconds{4});
  CHECK(all.backward_weight == Seconds{6});
  CHECK(all.parameters == Bytes{2000});
  CHECK(all.optimizer_state == Bytes{4000});
  CHECK(all.input == Bytes{100});
  CHECK(all.output == Bytes{40});
  CHECK_FALSE(all.output_kept);
  CHECK(all.kept_for_input == Bytes{200});         // relu's output, kept by relu and by b
  CHECK(all.kept_for_weight == Bytes{200 + 200});  // a's gradient and b's input; b's gradient is in a slot
  CHECK(all.forward_peak == Bytes{400});           // relu's input is live while relu runs
  CHECK(all.backward_peak == Bytes{400});          // in relu: the gradients of its output and input
  CHECK(all.backward_input_peak == Bytes{400});    // the same, and b's input is still the one relu keeps
  CHECK(all.backward_weight_peak == Bytes{0});

  const StageCosts head = stage_costs(m, 0, 2, 2);
  CHECK(head.output_kept);
  CHECK(head.kept_for_input == Bytes{0});
  CHECK(head.backward_peak == Bytes{200});  // its output's gradient is in a slot

  const StageCosts tail = stage_costs(m, 2, 3, 2);
  CHECK(tail.input == Bytes{200});
  CHECK(tail.kept_for_input == Bytes{0});   // relu's output is the slot
  CHECK(tail.backward_peak == Bytes{200});  // the gradient sent upstream
}

TEST_CASE("a gradient in the memory of something kept takes none of its own", "[stage_costs]") {
  Measurement m = three_layers();
  LayerProfile loss;
  loss.name = "loss";
  loss.kept_for_input = Bytes{40};
  loss.backward_transient = Bytes{-40};
  m.layers.push_back(loss);
  CHECK(stage_costs(m, 3, 4, 0).backward_peak == Bytes{0});
  CHECK(stage_costs(m, 2, 4, 0).backward_peak == Bytes{200});
}

TEST_CASE("views of the stage's input take no bytes", "[stage_costs]") {
  Measurement m = three_layers();
  LayerProfile flatten;
  flatten.name = "flatten";
  flatten.output = Bytes{100};
  flatten.output_is_input = true;
  m.layers.insert(m.layers.begin(), flatten);
  const StageCosts costs = stage_costs(m, 0, 2, 0);
  CHECK(costs.kept_for_input == Bytes{0});
  CHECK(costs.forward_peak == Bytes{200});
  const StageCosts only = stage_costs(m, 0, 1, 0);
  CHECK(only.output == Bytes{100});
  CHECK_FALSE(only.output_kept);
  CHECK(only.forward_peak == Bytes{100});  // the copy that is sent
}

TEST_CASE("layers' spreads add in squares; a stage without any has none", "[stage_costs]") {
  Measurement m;
  m.layers.resize(3);
  CHECK_FALSE(stage_costs(m, 0, 3, 0).spread);
  m.layers[0].forward.spread = Seconds{3};
  m.layers[1].forward.spread = Seconds{4};
  m.layers[2].step.spread = Seconds{1};
  const StageCosts costs = stage_costs(m, 0, 2, 0);
  REQUIRE(costs.spread);
  CHECK(costs.spread->forward == Seconds{5});
  CHECK(costs.spread->step == Seconds{});
  CHECK(stage_costs(m, 2, 3, 0).spread->step == Seconds{1});
}

TEST_CASE("stage_costs agrees with an interpreter of storages", "[stage_costs]") {
  REQUIRE(rc::check("bytes of a random stage", [] {
    const int layers = *rc::gen::inRange(1, 9);
    const Measurement m = test::random_measurement(layers);
    const int first = *rc::gen::inRange(0, layers);
    const int last = *rc::gen::inRange(first + 1, layers + 1);
    const StageCosts costs = stage_costs(m, first, last, 0);
    const Interpreted expected = interpret(m, first, last);
    RC_ASSERT(costs.kept_for_input.value == expected.kept.value);
    RC_ASSERT(costs.output_kept == expected.output_kept);
    RC_ASSERT(costs.forward_peak.value == expected.forward_peak.value);
    RC_ASSERT(costs.backward_peak.value == std::max<std::int64_t>(0, expected.backward_peak.value));
    RC_ASSERT(costs.kept_for_weight.value == expected.kept_for_weight.value);
    RC_ASSERT(costs.input_half_peak().value == std::max<std::int64_t>(0, expected.input_half_peak.value));
    RC_ASSERT(costs.weight_half_peak().value == std::max<std::int64_t>(0, expected.weight_half_peak.value));
  }));
}

/// Every range of layers.
void assert_walked_alike(const Measurement& measurement) {
  const int layers = static_cast<int>(measurement.layers.size());
  for (int first = 0; first < layers; ++first) {
    for (int last = first + 1; last <= layers; ++last) {
      const StageCosts costs = stage_costs(measurement, first, last, 0);
      const test::ActivationBytes bytes = test::activation_bytes(measurement, first, last);
      RC_ASSERT(bytes.kept_for_input == costs.kept_for_input);
      RC_ASSERT(bytes.kept_for_weight == costs.kept_for_weight);
      RC_ASSERT(bytes.output_kept == costs.output_kept);
      RC_ASSERT(bytes.forward_peak == costs.forward_peak);
      RC_ASSERT(bytes.unkept_forward_peak == costs.unkept_peak());
      RC_ASSERT(bytes.backward_peak == costs.backward_peak);
      RC_ASSERT(bytes.backward_input_peak == costs.input_half_peak());
      RC_ASSERT(bytes.backward_weight_peak == costs.weight_half_peak());
    }
  }
}

TEST_CASE("the walk over bundles finds of chains what the walk over chains finds", "[stage_costs]") {
  REQUIRE(rc::check("every range of layers",
                    [] { assert_walked_alike(test::random_measurement(*rc::gen::inRange(1, 7))); }));
}

TEST_CASE("the walk over bundles finds what following every storage finds", "[stage_costs]") {
  REQUIRE(rc::check("every range of layers", [] {
    Measurement measurement = test::random_measurement(*rc::gen::inRange(1, 7));
    const auto coin = [] { return *rc::gen::arbitrary<bool>(); };
    std::vector<bool> gradients{true};  // of the values before the layer
    for (LayerProfile& layer : measurement.layers) {
      layer.outputs.resize(*rc::gen::inRange<std::size_t>(1, 4));
      layer.output = Bytes{};
      std::vector<int> with_gradient;
      for (std::size_t k = 0; k < layer.outputs.size(); ++k) {
        OutputProfile& output = layer.outputs[k];
        output.bytes = Bytes{*rc::gen::inRange(0, 100)};
        output.has_gradient = k == 0 || coin();
        output.kept = coin();
        output.kept_for_weight = coin();
        output.gradient_kept = coin();
        if (coin()) output.same_as = *rc::gen::inRange(0, static_cast<int>(gradients.size()));
        if (output.has_gradient) with_gradient.push_back(static_cast<int>(k));
        layer.output += output.bytes;
      }
      for (const bool has_gradient : gradients) {
        InputProfile& input = layer.inputs.emplace_back();
        input.kept = coin();
        input.kept_for_weight = coin();
        if (!has_gradient) continue;
        input.makes_gradient = coin();
        if (!input.makes_gradient) input.gradient_of = *rc::gen::elementOf(with_gradient);
      }
      gradients.clear();
      for (const OutputProfile& output : layer.outputs) gradients.push_back(output.has_gradient);
    }
    assert_walked_alike(measurement);
  }));
}

}  // namespace stagecraft
