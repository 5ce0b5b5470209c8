#include "engine/run/resolve/quick_profile.h"

#include "base/json.h"
#include "engine/device/graphs.h"
#include "engine/run/resolve/devices.h"
#include "engine/run/resolve/memory_check.h"
#include "profiler/layer_profiler.h"
#include "profiler/profile_estimate.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>

namespace stagecraft {
namespace {

/// Longest time for one micro-batch size: a run that was given no plan should still start soon.
constexpr Seconds kBudget{15};

std::vector<std::int64_t> sizes_of(const RunConfig& config) {
  std::vector<std::int64_t> sizes = config.profiler.micro_batch_sizes;
  if (std::find(sizes.begin(), sizes.end(), config.micro_batch_size) == sizes.end()) {
    sizes.push_back(config.micro_batch_size);
  }
  return sizes;
}

/// The data set's own first samples, uncut, around again where it has too few.
ChainInput samples(const TrainingInputs& inputs, std::int64_t size, int index) {
  const Dataset& data = inputs.data->uncut();
  std::vector<std::int64_t> indices(static_cast<std::size_t>(size));
  std::iota(indices.begin(), indices.end(), size * index);
  for (std::int64_t& i : indices) i %= data.size(Split::train);
  ChainInput input{data.inputs(Split::train, indices), {}};
  if (inputs.loss->reads_targets()) input.targets = data.targets(Split::train, indices);
  const int layers = static_cast<int>(inputs.model.layers.size());
  input.fields =
      read_fields(data, Split::train, inputs.model.fields_of(0, layers, inputs.loss.get()), indices);
  return input;
}

/// What the optimizer keeps of each layer, where that is no fixed multiple of its weights, and what its update
/// takes for itself, where nobody measured that of the very layer.
void add_optimizer_bytes(Profile& profile, const ModelOptimizer& optimizer) {
  const bool is_measured = !profile.estimated_from;
  for (Measurement& measurement : profile.measurements) {
    for (std::size_t i = 0; i + 1 < measurement.layers.size(); ++i) {  // the last is the loss
      LayerProfile& layer = measurement.layers[i];
      const Bytes state = optimizer.state_bytes(static_cast<int>(i));
      const Bytes workspace = optimizer.workspace_bytes(static_cast<int>(i));
      if (state != layer.optimizer_bytes(profile.optimizer_bytes_per_parameter_byte)) layer.optimizer = state;
      const bool measured = is_measured && !layer.measured_as;  // a layer like it may be in another group
      if (!measured && workspace > layer.step_transient.value_or(Bytes{})) layer.step_transient = workspace;
    }
  }
}

}  // namespace

Profile quick_profile(const RunConfig& config, const std::string& file, const TrainingInputs& inputs,
                      int threads, at::Device device) {
  check_profile_memory(config, file, inputs, /*processes_here=*/1, tensor_limits(device));
  ProfileRequest request;
  request.micro_batch_sizes = sizes_of(config);
  request.repeats = config.profiler.repeats;
  request.representatives = config.profiler.representatives;
  request.warmup = config.profiler.warmup;
  request.budget = kBudget;
  request.passes_per_update = config.micro_batches();
  request.device = device;
  if (device.is_cuda() && config.cuda.graphs) request.graphs = make_device_graphs(device.index());
  request.seed = static_cast<std::uint64_t>(config.seed);
  request.data = [&](std::int64_t size, int index) { return samples(inputs, size, index); };
  const ModelOptimizer& optimizer = *inputs.optimizer;
  request.optimizer = config.optimizer.type.name();
  request.optimizer_bytes_per_parameter_byte = optimizer.bytes_per_parameter_byte();
  std::map<int, OptimizerState> states;
  request.update = [&](int layer, const Tensors& parameters, const Tensors& gradients) {
    optimizer.step(layer, {.learning_rate = 0}, parameters, gradients,
                   std::vector<bool>(parameters.size(), true), states[layer]);
  };
  const int threads_before = at::get_num_threads();
  at::set_num_threads(threads);
  Profile profile = profile_model(inputs.model, *inputs.loss, request);
  add_optimizer_bytes(profile, optimizer);
  at::set_num_threads(threads_before);
  profile.threads = threads;
  profile.device = device_name(device);
  if (const auto peak = peak_flops_of(config, /*ranks=*/1)) profile.peak_tflops = *peak / 1e12;
  if (const auto clock = clock_of(device)) {
    profile.device_megahertz = clock->megahertz;
    profile.device_most_megahertz = clock->most_megahertz;
  }
  return profile;
}

bool is_of_run(const Profile& profile, const RunConfig& config, const TrainingInputs& inputs, int threads,
               at::Device device) {
  const auto has = [&](std::int64_t size) {
    return std::any_of(profile.measurements.begin(), profile.measurements.end(),
                       [&](const Measurement& m) { return m.micro_batch == size; });
  };
  const std::vector<std::int64_t> sizes = sizes_of(config);
  const bool launched = device.is_cuda() && !config.cuda.graphs;
  return !profile.estimated_from && profile.model_fingerprint == inputs.model.fingerprint &&
         profile.dtype == precision_of(config).name() && profile.device == device_name(device) &&
         (profile.times_of == "launched operators") == launched && profile.threads == threads &&
         profile.optimizer == config.optimizer.type.name() && std::all_of(sizes.begin(), sizes.end(), has);
}

Profile estimated_profile(const RunConfig& config, const std::string& file, const TrainingInputs& inputs,
                          const EstimateRates& rates) {
  const Model& model = inputs.model;
  if (const std::vector<std::string> unknown = not_estimated(model); !unknown.empty()) {
    throw InputError({file, "/model"},
                     fmt::format("layer \"{}\" says nothing of its work: only captured models can be "
                                 "estimated; leave --estimate out to measure it",
                                 unknown.front()));
  }
  EstimateRequest request;
  request.micro_batch_sizes = sizes_of(config);
  request.flops_per_second = rates.flops_per_second;
  request.bytes_per_second = rates.bytes_per_second;
  const ChainInput one = samples(inputs, 1, 0);
  const auto bytes = [](const at::Tensor& tensor) {
    return Bytes{static_cast<std::int64_t>(tensor.nbytes())};
  };
  if (one.targets.defined()) request.targets_per_sample = bytes(one.targets);
  for (const auto& [name, field] : one.fields) request.fields_per_sample.push_back({name, bytes(field)});
  if (model.boundary_of(one.inputs).scalar_type() != one.inputs.scalar_type())
    request.read_per_sample = bytes(one.inputs);
  request.optimizer = config.optimizer.type.name();
  request.optimizer_bytes_per_parameter_byte = inputs.optimizer->bytes_per_parameter_byte();
  Profile profile = estimate_profile(model, *inputs.loss, request);
  add_optimizer_bytes(profile, *inputs.optimizer);
  return profile;
}

Profile mean_over_ranks(Profile profile, Transport& transport) {
  std::vector<Seconds*> times;
  for (Measurement& measurement : profile.measurements) {
    for (LayerProfile& layer : measurement.layers) {
      for (Timing* timing : {&layer.forward, &layer.backward_input, &layer.backward_weight, &layer.step}) {
        times.insert(times.end(), {&timing->median, &timing->spread});
      }
    }
  }
  std::vector<double> mine;
  for (const Seconds* time : times) mine.push_back(time->value);
  const std::vector<std::vector<double>> all = transport.all_gather(mine);
  for (std::size_t i = 0; i < times.size(); ++i) {
    double sum = 0;
    for (const std::vector<double>& rank : all) sum += rank.at(i);
    times[i]->value = sum / static_cast<double>(all.size());
  }
  return profile;
}

}  // namespace stagecraft
