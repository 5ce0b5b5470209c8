#include "test/partitioner/random_profile.h"

#include <fmt/format.h>
#include <rapidcheck.h>

#include <utility>
#include <vector>

namespace stagecraft::test {

namespace {
Bytes some_bytes(int most) { return Bytes{*rc::gen::inRange(0, most + 1)}; }
Timing some_time(int most) {
  return {Seconds{static_cast<double>(*rc::gen::inRange(0, most + 1))}, Seconds{}};
}
}  // namespace

LayerProfile random_layer(int index) {
  LayerProfile layer;
  layer.name = fmt::format("layer{}", index);
  layer.forward = some_time(8);
  layer.backward_input = some_time(8);
  layer.backward_weight = some_time(8);
  layer.step = some_time(3);
  layer.parameters = *rc::gen::arbitrary<bool>() ? some_bytes(50) : Bytes{};
  layer.buffers = some_bytes(5);
  layer.output = some_bytes(40);
  layer.kept_for_input = some_bytes(30);
  layer.kept_for_weight = some_bytes(30);
  layer.keeps_input = *rc::gen::arbitrary<bool>();
  layer.keeps_output = *rc::gen::arbitrary<bool>();
  layer.output_is_input = *rc::gen::inRange(0, 4) == 0;
  layer.forward_transient = some_bytes(20);
  layer.backward_transient = some_bytes(20);
  if (layer.output_is_input) {  // a view has no weights
    layer.parameters = layer.kept_for_weight = Bytes{};
    return layer;
  }
  layer.weight_half_keeps_gradient = *rc::gen::arbitrary<bool>();
  if (*rc::gen::arbitrary<bool>()) return layer;  // as from a profile that says nothing of halves
  layer.weight_half_keeps_input = *rc::gen::arbitrary<bool>();
  layer.weight_half_keeps_output = *rc::gen::arbitrary<bool>();
  layer.backward_input_transient = some_bytes(20);
  layer.backward_weight_transient = some_bytes(20);
  return layer;
}

Measurement random_measurement(int layers) {
  Measurement measurement;
  measurement.input = some_bytes(40);
  Bytes input = measurement.input;
  for (int i = 0; i < layers; ++i) {
    measurement.layers.push_back(random_layer(i));
    LayerProfile& layer = measurement.layers.back();
    if (layer.output_is_input) layer.output = input;  // a view of all of it
    input = layer.output;
  }
  return measurement;
}

void freeze(LayerProfile& layer) {
  layer.frozen = true;
  layer.buffers += std::exchange(layer.parameters, {});
  layer.backward_input = layer.backward_weight = layer.step = {};
  layer.kept_for_input = layer.kept_for_weight = {};
  layer.keeps_input = layer.keeps_output = false;
  layer.weight_half_keeps_input = layer.weight_half_keeps_output = {};
  layer.weight_half_keeps_gradient = false;
  layer.backward_transient = {};
  layer.backward_input_transient = layer.backward_weight_transient = layer.optimizer =
      layer.step_transient = {};
}

void share_weights(Profile& profile) {
  std::vector<LayerProfile>& layers = profile.measurements.front().layers;
  const int first = profile.measurements.front().gradient_from();
  const int trained = static_cast<int>(layers.size()) - first;
  const int count = trained < 2 ? 0 : *rc::gen::inRange(0, 3);
  for (int k = 0; k < count; ++k) {
    const int one = *rc::gen::inRange(0, trained - 1);
    const int other = *rc::gen::inRange(one + 1, trained);
    const Bytes bytes = some_bytes(40);
    for (const int layer : {one, other}) layers[to_size(first + layer)].parameters += bytes;
    profile.ties.push_back({fmt::format("tie{}", k), {first + one, first + other}, bytes});
  }
}

void read_fields(Measurement& measurement) {
  measurement.fields = {{"mask", some_bytes(40)}};
  for (LayerProfile& layer : measurement.layers) {
    if (*rc::gen::inRange(0, 3) == 0) layer.fields = {"mask"};
  }
}

LayerProfile plain_layer(int index, double work, std::int64_t output) {
  LayerProfile layer;
  layer.name = fmt::format("layer{}", index);
  layer.forward.median = Seconds{work / 4};
  layer.backward_input.median = Seconds{work / 4};
  layer.backward_weight.median = Seconds{work / 2};
  layer.output = Bytes{output};
  return layer;
}

}  // namespace stagecraft::test
