// optimizer_steps CONFIG OUT.safetensors: what a config's optimizer and learning rate make of random gradients,
// for test/scripts/optimizers_test.py to hold against PyTorch's. The file has the initial parameters, the
// gradients of every step, the rates, and the parameters and the optimizer's state at the end.

#include "base/json.h"
#include "engine/run/resolve/training_inputs.h"
#include "models/tensors/safetensors.h"
#include "models/tensors/safetensors_writer.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <iostream>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace stagecraft;

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// Gradients of sizes that differ from step to step, as those of a run do.
at::Tensor gradient_of(const at::Tensor& parameter, at::Generator& generator, std::int64_t step) {
  const double scale = 0.5 / (1 + static_cast<double>(step % 7));
  return at::randn(parameter.sizes(), generator, parameter.options()).mul_(scale);
}

NamedTensors run(const RunConfig& config) {
  const TrainingInputs inputs = open_training_inputs(config, "config");
  const Model& model = inputs.model;
  const std::int64_t steps = *config.train_steps;
  auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(config.seed));
  NamedTensors all;
  std::vector<double> rates;
  for (std::int64_t step = 0; step < steps; ++step) {
    rates.push_back(config.scheduler.rate({step, steps, inputs.optimizer->learning_rate()}));
  }
  all.emplace_back("rates", at::tensor(rates, at::kDouble));
  for (int layer = 0; layer < static_cast<int>(model.layers.size()); ++layer) {
    const Layer& its = *model.layers[static_cast<std::size_t>(layer)];
    const std::vector<ParameterSpec>& specs = its.parameters();
    if (specs.empty()) continue;
    const Tensors parameters = initial_parameters(model, layer, static_cast<std::uint64_t>(config.seed));
    const auto name = [&](std::size_t i) { return its.name() + "." + specs[i].name; };
    for (std::size_t i = 0; i < specs.size(); ++i) {
      all.emplace_back("initial/" + name(i), parameters[i].clone());
    }
    OptimizerState state;
    for (std::int64_t step = 0; step < steps; ++step) {
      Tensors gradients;
      for (std::size_t i = 0; i < specs.size(); ++i) {
        gradients.push_back(gradient_of(parameters[i], generator, step));
        all.emplace_back(fmt::format("gradient/{}/{}", step, name(i)), gradients.back());
      }
      inputs.optimizer->step(layer, {rates[static_cast<std::size_t>(step)]}, parameters, gradients,
                             std::vector<bool>(specs.size(), true), state);
    }
    for (std::size_t i = 0; i < specs.size(); ++i) {
      all.emplace_back("final/" + name(i), parameters[i]);
      for (const auto& [key, tensor] : state.tensors[i]) {
        all.emplace_back(fmt::format("state/{}/{}", key, name(i)), tensor);
      }
    }
  }
  return all;
}

}  // namespace

int main(int arguments, char** argument) {
  try {
    if (arguments != 3) throw InputError("optimizer_steps CONFIG OUT.safetensors");
    const c10::InferenceMode no_autograd;
    write_safetensors(argument[2], run(read_run_config(argument[1])), {{"format", "pt"}});
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 2;
  }
}
