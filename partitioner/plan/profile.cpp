#include "partitioner/plan/profile.h"

#include "base/file_kind.h"
#include "base/json.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace stagecraft {

const Measurement& Profile::at(std::int64_t micro_batch) const {
  std::vector<std::int64_t> sizes;
  for (const Measurement& measurement : measurements) {
    if (measurement.micro_batch == micro_batch) return measurement;
    sizes.push_back(measurement.micro_batch);
  }
  throw InputError(fmt::format(
      "the profile{} has no measurement of micro-batches of {} samples, only of {}; measure it with "
      "`stagecraft profile --micro-batch-sizes {}` or plan with one of those",
      model.empty() ? "" : " of " + model, micro_batch, fmt::join(sizes, ", "), micro_batch));
}

Bytes Measurement::field_bytes(const std::string& name) const {
  const auto field = std::ranges::find(fields, name, &FieldBytes::name);
  STAGECRAFT_CHECK(field != fields.end(), fmt::format("the measurement has no field \"{}\"", name));
  return field->bytes;
}

Bytes LayerProfile::optimizer_bytes(double per_parameter_byte) const {
  return optimizer.value_or(Bytes{std::llround(static_cast<double>(parameters.value) * per_parameter_byte)});
}

namespace {

/// Any stage of these layers is one that plans can be made of: nothing overflows, whatever is summed.
void validate_totals(const Measurement& measurement, double optimizer_factor, const InputPlace& layers) {
  double forward = 0, backward_input = 0, backward_weight = 0, step = 0;
  double weights = 0, activations = 0;
  const auto bytes = [](Bytes value) { return std::abs(static_cast<double>(value.value)); };
  const auto transient = [&](std::optional<Bytes> value) { return value ? bytes(*value) : 0; };
  for (const LayerProfile& layer : measurement.layers) {
    for (const OutputProfile& output : layer.outputs) activations += 2 * bytes(output.bytes);
    forward += layer.forward.median.value;
    backward_input += layer.backward_input.median.value;
    backward_weight += layer.backward_weight.median.value;
    step += layer.step.median.value;
    const double state =
        layer.optimizer ? bytes(*layer.optimizer) : bytes(layer.parameters) * optimizer_factor;
    weights += std::max(bytes(layer.parameters), state) + bytes(layer.compute_copy) + bytes(layer.buffers);
    activations += 2 * bytes(layer.output) + bytes(layer.kept_for_input) + bytes(layer.kept_for_weight) +
                   bytes(layer.forward_transient) + bytes(layer.backward_transient) +
                   transient(layer.backward_input_transient) + transient(layer.backward_weight_transient) +
                   transient(layer.step_transient);
  }
  for (const FieldBytes& field : measurement.fields) activations += bytes(field.bytes);
  activations += 2 * bytes(measurement.input) + bytes(measurement.read) + bytes(measurement.targets);
  const auto refuse_above = [&](double most, double found, const char* what) {
    if (found <= most) return;
    throw InputError(
        layers, fmt::format("expected at most {:.15g} {} of all layers, found {:.3g}", most, what, found));
  };
  const double milliseconds = std::max({forward, backward_input, backward_weight, step}) * 1e3;
  refuse_above(kMostMilliseconds, milliseconds, "ms");
  refuse_above(static_cast<double>(kMostWeightBytes.value), weights, "bytes of weights and optimizer state");
  // A peak may count a tensor twice.
  refuse_above(static_cast<double>(kMostActivationBytes.value) / 2, activations, "bytes of activations");
}

/// What row i says of several tensors fits what the row before it says, and itself.
void validate_bundles(const Measurement& measurement, std::size_t i, const InputPlace& place) {
  const LayerProfile& layer = measurement.layers[i];
  const auto at = [&](const std::string& key) { return InputPlace{place.file, place.pointer + "/" + key}; };
  const std::size_t before = i == 0 ? 1 : std::max<std::size_t>(1, measurement.layers[i - 1].outputs.size());
  if (layer.inputs.empty() && layer.outputs.empty() && before == 1) return;
  if (layer.inputs.size() != before) {
    throw InputError(at("inputs"), fmt::format("expected {}, as many as go on before it, found {}", before,
                                               layer.inputs.size()));
  }
  if (layer.outputs.empty()) throw InputError(at("outputs"), "expected those that go on behind it");
  for (std::size_t k = 0; k < layer.inputs.size(); ++k) {
    const std::optional<int>& of = layer.inputs[k].gradient_of;
    if (!of) continue;
    const auto output = to_size(*of);
    if (output >= layer.outputs.size() || !layer.outputs[output].has_gradient) {
      throw InputError(at(fmt::format("inputs/{}/gradient_of", k)),
                       fmt::format("expected an output that has a gradient, found {}", *of));
    }
  }
  for (std::size_t k = 0; k < layer.outputs.size(); ++k) {
    const std::optional<int>& as = layer.outputs[k].same_as;
    if (!as || to_size(*as) < layer.inputs.size()) continue;
    throw InputError(at(fmt::format("outputs/{}/same_as", k)),
                     fmt::format("expected one of {} inputs, found {}", layer.inputs.size(), *as));
  }
}

/// A layer that says it is frozen.
void validate_frozen(const Measurement& measurement, std::size_t i, const InputPlace& place) {
  const LayerProfile& layer = measurement.layers[i];
  const auto refuse = [&](const char* key, const std::string& what) {
    throw InputError({place.file, place.pointer + key}, what);
  };
  if (i > 0 && !measurement.layers[i - 1].frozen.value_or(false))
    refuse("/frozen", "expected none behind a layer that is not frozen: a gradient comes through it");
  if (i + 1 == measurement.layers.size()) refuse("/frozen", "expected a layer with a trained weight");
  if (layer.parameters > Bytes{})
    refuse("/parameter_bytes", "expected 0: frozen weights are among the buffers");
  if (layer.backward_input.median > Seconds{} || layer.backward_weight.median > Seconds{} ||
      layer.kept_for_input > Bytes{} || layer.kept_for_weight > Bytes{} || layer.keeps_input ||
      layer.keeps_output) {
    refuse("/frozen", "expected no time of a backward, and nothing kept for one");
  }
}

void validate_ties(const Profile& profile, const std::string& file) {
  const std::vector<LayerProfile>& all = profile.measurements.front().layers;
  const auto layers = static_cast<int>(all.size());
  for (std::size_t k = 0; k < profile.ties.size(); ++k) {
    const std::vector<int>& holders = profile.ties[k].layers;
    const InputPlace place{file, fmt::format("/ties/{}/layers", k)};
    if (holders.size() < 2) throw InputError(place, "expected at least two layers");
    for (std::size_t i = 0; i < holders.size(); ++i) {
      const int least = i == 0 ? 0 : holders[i - 1] + 1;
      if (holders[i] >= least && holders[i] < layers) continue;
      throw InputError(place,
                       fmt::format("expected layers of the {}, ascending, found {}", layers, holders[i]));
    }
    for (const int holder : holders) {
      const LayerProfile& layer = all[to_size(holder)];
      if (layer.frozen.value_or(false)) {
        throw InputError(place, fmt::format("expected layers that are not frozen, found {} (\"{}\"): a "
                                            "weight that another layer trains is no frozen one",
                                            holder, layer.name));
      }
      if (profile.ties[k].bytes <= layer.parameters) continue;
      throw InputError({file, fmt::format("/ties/{}/bytes", k)},
                       fmt::format("expected at most the {} of \"{}\", which counts its own copy, found {}",
                                   layer.parameters.value, layer.name, profile.ties[k].bytes.value));
    }
  }
}

}  // namespace

void validate(const Profile& profile, const std::string& file) {
  validate_ties(profile, file);
  std::set<std::int64_t> sizes;
  const std::vector<LayerProfile>& reference = profile.measurements.front().layers;
  for (std::size_t m = 0; m < profile.measurements.size(); ++m) {
    const Measurement& measurement = profile.measurements[m];
    const std::string here = fmt::format("/measurements/{}", m);
    if (!sizes.insert(measurement.micro_batch).second) {
      throw InputError({file, here + "/micro_batch"},
                       fmt::format("the size {} was measured before; keep one", measurement.micro_batch));
    }
    if (measurement.layers.size() != reference.size()) {
      throw InputError({file, here + "/layers"}, fmt::format("{} layers, but {} in the first measurement",
                                                             measurement.layers.size(), reference.size()));
    }
    validate_totals(measurement, profile.optimizer_bytes_per_parameter_byte, {file, here + "/layers"});
    std::set<std::string> all, names;
    for (const LayerProfile& layer : measurement.layers) all.insert(layer.name);
    for (std::size_t i = 0; i < reference.size(); ++i) {
      const LayerProfile& layer = measurement.layers[i];
      const std::string at = fmt::format("{}/layers/{}", here, i);
      if (layer.frozen.value_or(false)) validate_frozen(measurement, i, {file, at});
      if (!names.insert(layer.name).second) {
        throw InputError({file, at + "/name"},
                         fmt::format("\"{}\" is there twice; expected a name for each layer", layer.name));
      }
      if (layer.measured_as && !all.contains(*layer.measured_as)) {
        throw InputError({file, at + "/measured_as"},
                         fmt::format("expected another layer's name, found \"{}\"", *layer.measured_as));
      }
      if (layer.name != reference[i].name) {
        throw InputError({file, at + "/name"}, fmt::format("\"{}\", but \"{}\" in the first measurement",
                                                           layer.name, reference[i].name));
      }
      for (std::size_t f = 0; f < layer.fields.size(); ++f) {
        if (std::ranges::find(measurement.fields, layer.fields[f], &FieldBytes::name) !=
            measurement.fields.end())
          continue;
        throw InputError({file, fmt::format("{}/fields/{}", at, f)},
                         fmt::format("\"{}\" is none of the measurement's fields", layer.fields[f]));
      }
      validate_bundles(measurement, i, {file, at});
      if (layer.parameters != reference[i].parameters) {
        throw InputError({file, at + "/parameter_bytes"},
                         fmt::format("{}, but {} in the first measurement: weights do not depend on the "
                                     "micro-batch",
                                     layer.parameters.value, reference[i].parameters.value));
      }
    }
  }
}

Profile read_profile(const std::string& path) {
  const Json json = json::parse_file(path);
  require_kind(json, {path, ""}, "profile");
  auto profile = json::read<Profile>(json, {path, ""});
  validate(profile, path);
  return profile;
}

}  // namespace stagecraft
