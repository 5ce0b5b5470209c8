#include "profiler/profile_estimate.h"

#include "base/error.h"
#include "models/tensors/counting_allocator.h"
#include "profiler/chain.h"
#include "profiler/layer_memory.h"
#include "profiler/tied_weights.h"

#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace stagecraft {
namespace {

std::int64_t elements(const std::vector<std::int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

Bytes bytes_of(const std::vector<std::int64_t>& shape, at::ScalarType dtype) {
  return Bytes{elements(shape) * static_cast<std::int64_t>(c10::elementSize(dtype))};
}

Seconds time_of(const std::vector<OperatorWork>& works, const EstimateRequest& request) {
  Seconds sum;
  for (const OperatorWork& work : works) {
    sum += Seconds{
        std::max(2 * work.multiply_adds / request.flops_per_second, work.bytes / request.bytes_per_second)};
  }
  return sum;
}

Seconds time_of(Bytes moved, const EstimateRequest& request) {
  return Seconds{static_cast<double>(moved.value) / request.bytes_per_second};
}

/// What a graph says of a layer, or of a loss.
LayerProfile graph_profile(const LayerEstimate& its, const EstimateRequest& request) {
  LayerProfile profile;
  profile.forward.median = time_of(its.forward, request);
  profile.backward_input.median = time_of(its.backward_input, request);
  profile.output_is_input = its.output_is_input;
  profile.kept_for_input = its.kept_for_input;
  profile.keeps_input = its.keeps_input;
  profile.keeps_output = its.keeps_output;
  profile.forward_transient = its.forward_transient;
  profile.backward_transient = its.backward_transient;
  profile.backward_input_transient = its.backward_input_transient;
  if (its.inputs.size() <= 1 && its.outputs.size() <= 1) return profile;
  const auto position = [](int i) { return i < 0 ? std::nullopt : std::optional(i); };
  for (const InputUse& input : its.inputs) {
    profile.inputs.push_back(
        {input.kept, input.kept_for_weight, input.makes_gradient, position(input.gradient_of)});
  }
  for (const OutputUse& output : its.outputs) {
    profile.outputs.push_back({output.bytes, position(output.same_as), output.has_gradient, output.kept,
                               output.kept_for_weight, output.gradient_kept});
  }
  return profile;
}

/// Of a frozen layer, which keeps nothing either. What its forward would have kept counts among its transients.
void leave_out_backward(LayerEstimate& its) {
  its.backward_input.clear();
  its.backward_weight.clear();
  its.forward_transient += its.kept_for_input;  // at most
  its.kept_for_input = its.kept_for_weight = {};
  its.keeps_input = its.keeps_output = false;
  its.weight_half_keeps_input = its.weight_half_keeps_output = its.weight_half_keeps_gradient = false;
  its.backward_transient = its.backward_input_transient = its.backward_weight_transient = {};
  for (InputUse& input : its.inputs) input = {};
  for (OutputUse& output : its.outputs) output.kept = output.kept_for_weight = output.gradient_kept = false;
}

LayerProfile layer_profile(const Model& model, int index, std::int64_t size, Bytes output,
                           const EstimateRequest& request) {
  const Layer& layer = *model.layers[static_cast<std::size_t>(index)];
  LayerEstimate its = layer.facts().estimate(size, index <= model.gradient_from);
  const bool frozen = index < model.gradient_from;
  if (frozen) leave_out_backward(its);
  LayerProfile profile = graph_profile(its, request);
  profile.name = layer.name();
  if (frozen) profile.frozen = true;
  profile.fields = layer.facts().fields;
  profile.output = output;
  profile.parameters = parameter_bytes(model, index);
  if (model.precision.mixed()) {
    for (const ParameterSpec& spec : layer.parameters()) {
      profile.compute_copy +=
          bytes_of(spec.shape, spec.full ? model.precision.full : model.precision.compute);
    }
  }
  for (const BufferSpec& spec : layer.buffers()) {
    profile.buffers += bytes_of(spec.shape, spec.dtype.value_or(model.precision.full));
  }
  if (profile.parameters == Bytes{}) return profile;
  profile.backward_weight.median = time_of(its.backward_weight, request);
  profile.kept_for_weight = its.kept_for_weight;
  profile.weight_half_keeps_input = its.weight_half_keeps_input;
  profile.weight_half_keeps_output = its.weight_half_keeps_output;
  profile.weight_half_keeps_gradient = its.weight_half_keeps_gradient;
  profile.backward_weight_transient = its.backward_weight_transient;
  // Reads parameters, gradients and state, writes parameters and state.
  const double streams = 3 + 2 * request.optimizer_bytes_per_parameter_byte;
  const auto parameters = static_cast<double>(profile.parameters.value);
  profile.step.median = Seconds{parameters * streams / request.bytes_per_second};
  return profile;
}

/// The loss of `rows` tokens, where an output has one for each, or samples: it alone is run.
LayerProfile run_loss(const Model& model, const Loss& loss, std::int64_t rows) {
  Model only_loss;
  only_loss.name = model.name;
  only_loss.sample = model.sample;
  only_loss.precision = model.precision;
  std::vector<std::int64_t> output = boundaries(model, 1).back().shape, target{1};
  if (loss.targets() == Targets::values) {
    target = output;
    output[0] = target[0] = rows;
  } else if (loss.targets() == Targets::tokens) {
    target = {1, rows};
    output[1] = rows;
  } else {
    output[0] = target[0] = rows;
  }
  const bool numbers = loss.targets() == Targets::values;
  Chain chain(only_loss, loss, /*seed=*/0, at::kCPU);
  const ChainInput data{at::zeros(output, model.precision.compute),
                        at::zeros(target, numbers ? model.precision.full : at::kLong),
                        {}};
  (void)measure_memory(chain, data);
  LayerProfile profile = measure_memory(chain, data).front();
  // Its gradient stays: a chain of nothing else takes it for one that nobody wants.
  const Bytes gradient{static_cast<std::int64_t>(data.inputs.nbytes())};
  profile.backward_transient = profile.backward_transient - gradient;
  profile.backward_input_transient = *profile.backward_input_transient - gradient;
  return profile;
}

/// Bytes are linear in tokens or samples: a line through two small runs.
LayerProfile loss_profile(const Model& model, const Loss& loss, std::int64_t size, Bytes input,
                          const EstimateRequest& request) {
  if (const std::optional<LayerEstimate> its = loss.estimate(size)) {
    LayerProfile profile = graph_profile(*its, request);
    profile.name = "loss";
    profile.fields = loss.fields();
    return profile;
  }
  constexpr std::int64_t kFew = 8, kMore = 16;
  const LayerProfile few = run_loss(model, loss, kFew), more = run_loss(model, loss, kMore);
  const std::vector<std::int64_t> output = boundaries(model, 1).back().shape;
  const std::int64_t rows = loss.targets() == Targets::tokens ? size * output[1] : size;
  const auto at_rows = [&](Bytes a, Bytes b) {
    const std::int64_t slope = (b.value - a.value) / (kMore - kFew);
    return Bytes{a.value + slope * (rows - kFew)};
  };
  LayerProfile profile = few;
  profile.kept_for_input = at_rows(few.kept_for_input, more.kept_for_input);
  profile.forward_transient = std::max(Bytes{}, at_rows(few.forward_transient, more.forward_transient));
  profile.backward_transient = at_rows(few.backward_transient, more.backward_transient);
  profile.backward_input_transient = at_rows(*few.backward_input_transient, *more.backward_input_transient);
  // Reads logits and writes what it keeps; then reads that and writes the gradient.
  profile.forward.median = time_of(input + profile.kept_for_input, request);
  profile.backward_input.median = time_of(profile.kept_for_input + input, request);
  return profile;
}

}  // namespace

std::vector<std::string> not_estimated(const Model& model) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    if (!model.layers[i]->facts().estimate) names.push_back(model.layers[i]->name());
  }
  return names;
}

Profile estimate_profile(const Model& model, const Loss& loss, const EstimateRequest& request) {
  STAGECRAFT_CHECK(request.flops_per_second > 0 && request.bytes_per_second > 0, "an estimate without rates");
  install_counting_allocator();
  const c10::InferenceMode no_autograd;
  Profile profile;
  profile.model = model.name;
  profile.model_fingerprint = model.fingerprint;
  profile.ties = tied_weights(model);
  if (const std::int64_t tokens = model.sample.tokens({1}); tokens > 0) profile.tokens_per_sample = tokens;
  if (const std::int64_t work = model.multiply_adds(); work > 0) profile.multiply_adds_per_sample = work;
  profile.dtype = model.precision.name();
  profile.optimizer = request.optimizer;
  profile.optimizer_bytes_per_parameter_byte = request.optimizer_bytes_per_parameter_byte;
  profile.estimated_from = fmt::format("multiply-adds and bytes at {:g} TFLOP/s and {:g} GB/s",
                                       request.flops_per_second / 1e12, request.bytes_per_second / 1e9);
  profile.device = "no device";
  profile.peak_tflops = request.flops_per_second / 1e12;
  for (const std::int64_t size : request.micro_batch_sizes) {
    const std::vector<BoundarySpec> tensors = boundaries(model, size);
    Measurement measurement;
    measurement.micro_batch = size;
    measurement.input = Bytes{tensors.front().bytes()};
    measurement.read = request.read_per_sample * size;
    measurement.targets = request.targets_per_sample * size;
    if (!loss.terms().empty()) measurement.loss = loss_report_bytes(loss);
    for (const FieldBytes& field : request.fields_per_sample) {
      measurement.fields.push_back({field.name, field.bytes * size});
    }
    for (int layer = 0; layer < static_cast<int>(model.layers.size()); ++layer) {
      const Bytes output{tensors[static_cast<std::size_t>(layer) + 1].bytes()};
      measurement.layers.push_back(layer_profile(model, layer, size, output, request));
    }
    measurement.layers.push_back(loss_profile(model, loss, size, Bytes{tensors.back().bytes()}, request));
    profile.measurements.push_back(std::move(measurement));
  }
  return profile;
}

}  // namespace stagecraft
