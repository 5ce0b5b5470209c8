// Optimizers at work on a model: parameter groups, which parameters are Muon's, averaged weights, parameters
// without a gradient, and bytes of state and workspace.

#include "engine/optimizers/model_optimizer.h"

#include "engine/optimizers/adafactor.h"
#include "engine/optimizers/adam.h"
#include "engine/optimizers/lion.h"
#include "engine/optimizers/memory_order.h"
#include "engine/optimizers/muon.h"
#include "engine/optimizers/nadam.h"
#include "engine/optimizers/sgd.h"
#include "models/families/captured.h"
#include "models/families/convnet.h"
#include "models/families/mlp.h"
#include "models/tensors/counting_allocator.h"
#include "test/support/catch.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/accumulate.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

using namespace stagecraft;

namespace {

/// Convolution and norm, then linear layers of 300, 200, 700 and 5 outputs.
Model convnet() {
  const SampleSpec sample{.shape = {1, 8, 8}, .dtype = at::kFloat, .classes = 5};
  return build_model({ConvnetConfig{.groups = {{6}}, .classifier = {300, 200, 700}}}, sample, at::kFloat,
                     {"test", "/model"});
}

ParameterGroup group_of(std::vector<std::string> parameters, std::optional<int> most_dimensions,
                        std::optional<double> lr, std::optional<double> weight_decay) {
  return {std::move(parameters), most_dimensions, lr, weight_decay};
}

ModelOptimizer optimizer_of(const OptimizerConfig& config, const Model& model) {
  return {config, model, {"run.json", "/optimizer"}};
}

/// One of each kind, all with something optional.
std::vector<OptimizerConfig> one_of_each() {
  return {{.type = SgdConfig{.momentum = 0.9}},
          {.type = SgdWConfig{}},
          {.type = AdamConfig{}},
          {.type = AdamWConfig{}},
          {.type = NAdamConfig{.weight_decay = 0.1}},
          {.type = NAdamConfig{.weight_decay = 0.1, .decoupled_weight_decay = true}, .ema_decay = 0.9},
          {.type = LionConfig{}, .ema_decay = 0.9},
          {.type = AdafactorConfig{}},
          {.type = MuonConfig{}},
          {.type = MuonConfig{.nesterov = false, .ns_dtype = "float32"}},
          {.type = AdamWConfig{}, .groups = {group_of({"*"}, 1, {}, 0)}}};
}

int layer_named(const Model& model, const std::string& name) {
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    if (model.layers[i]->name() == name) return static_cast<int>(i);
  }
  FAIL("no layer " << name);
  return -1;
}

struct LayerRun {
  LayerRun(const Model& model, int its_layer) : layer(its_layer) {
    parameters = initial_parameters(model, layer, /*seed=*/1);
    for (const at::Tensor& parameter : parameters) gradients.push_back(at::randn_like(parameter));
  }
  void step(const ModelOptimizer& optimizer, double rate = 0.01) {
    optimizer.step(layer, {rate}, parameters, gradients, std::vector<bool>(parameters.size(), true), state);
  }

  int layer;
  Tensors parameters, gradients;
  OptimizerState state;
};

}  // namespace

TEST_CASE("every optimizer that can be named is tested here", "[model_optimizer]") {
  std::set<std::string> tested;
  for (const OptimizerConfig& config : one_of_each()) tested.insert(config.type.name());
  for (const std::string& name : optimizers().names()) CHECK(tested.contains(name));
}

TEST_CASE("state and workspace take the bytes that are proved", "[model_optimizer]") {
  install_counting_allocator();
  const c10::InferenceMode no_autograd;
  const Model model = convnet();
  for (const OptimizerConfig& config : one_of_each()) {
    const ModelOptimizer optimizer = optimizer_of(config, model);
    Bytes whole, parameters;
    for (int layer = 0; layer < static_cast<int>(model.layers.size()); ++layer) {
      if (model.layers[static_cast<std::size_t>(layer)]->parameters().empty()) continue;
      INFO(config.type.name() << " of " << model.layers[static_cast<std::size_t>(layer)]->name());
      LayerRun run(model, layer);
      Bytes state;
      run.step(optimizer);
      for (const auto& tensors : run.state.tensors) {
        for (const auto& [name, tensor] : tensors) state += Bytes{static_cast<std::int64_t>(tensor.nbytes())};
      }
      CHECK(state == optimizer.state_bytes(layer));
      whole += state;
      for (const at::Tensor& parameter : run.parameters) {
        parameters += Bytes{static_cast<std::int64_t>(parameter.nbytes())};
      }
      MemoryAccount account;
      {
        const ChargeTo charge(account);
        run.step(optimizer);
      }
      const Bytes workspace = optimizer.workspace_bytes(layer);
      // What oneDNN takes for a product of narrow numbers depends on processor and threads: it is measured.
      const auto* muon = config.type.get_if<MuonConfig>();
      if (muon != nullptr && muon->ns_dtype == "bfloat16") continue;
      constexpr std::int64_t kScalars = 64;
      CHECK(account.peak().value <= workspace.value + kScalars);
      // A bound that is far above would make plans refuse what fits. Of tiny layers nobody minds.
      CHECK(static_cast<double>(workspace.value) <= 1.35 * static_cast<double>(account.peak().value) + 1024);
    }
    CHECK(optimizer.bytes_per_parameter_byte() ==
          Approx(static_cast<double>(whole.value) / static_cast<double>(parameters.value)));
  }
}

TEST_CASE("weights are updated in the order in which PyTorch has them in memory", "[model_optimizer]") {
  install_counting_allocator();
  const c10::InferenceMode no_autograd;
  const auto [shape, order, back] =
      GENERATE(table<std::vector<std::int64_t>, std::vector<std::int64_t>, std::vector<std::int64_t>>({
          {{5, 7}, {1, 0}, {1, 0}},
          {{5, 7, 3, 3}, {0, 2, 3, 1}, {0, 3, 1, 2}},  // channels last
          {{4, 8}, {1, 0}, {1, 0}},                    // whole vectors
      }));
  const auto lying = [&order = order, &back = back](const Tensors& tensors) {
    Tensors made;
    for (const at::Tensor& tensor : tensors) {
      made.push_back(tensor.permute(order).clone(at::MemoryFormat::Contiguous).permute(back));
    }
    return made;
  };
  constexpr std::size_t kWeights = 100;
  for (const OptimizerConfig& config : one_of_each()) {
    const OptimizerPtr optimizer = config.make();
    const ParameterSite site{"layer.weight", shape};
    OptimizerUpdate here{.learning_rate = 0.003, .weight_decay = 0.01};
    for (std::size_t i = 0; i < kWeights; ++i) {
      here.parameters.push_back(at::randn(shape));
      here.gradients.push_back(at::randn(shape));
    }
    OptimizerUpdate there = here;
    there.parameters = lying(here.parameters);
    there.gradients = lying(here.gradients);
    for (const StateSpec& spec : optimizer->state_of(site)) {
      Tensors zeros;
      for (std::size_t i = 0; i < kWeights; ++i) zeros.push_back(at::zeros(spec.shape));
      here.state_names.push_back(spec.name);
      there.state.push_back(spec.shape == shape ? lying(zeros) : Tensors());
      for (std::size_t i = 0; spec.shape != shape && i < kWeights; ++i) {
        there.state.back().push_back(zeros[i].clone());
      }
      here.state.push_back(std::move(zeros));
    }
    there.state_names = here.state_names;
    for (int step = 0; step < 3; ++step) {
      here.earlier_steps = there.earlier_steps = step;
      update_as_they_lie(*optimizer, here, std::vector(kWeights, order));
      optimizer->update(there);
    }
    INFO(config.type.name());
    for (std::size_t i = 0; i < kWeights; ++i) {
      CHECK(at::equal(here.parameters[i], there.parameters[i]));
      CHECK(here.parameters[i].is_contiguous());
      for (std::size_t k = 0; k < here.state.size(); ++k) {
        CHECK(at::equal(here.state[k][i], there.state[k][i]));
      }
    }
  }
  // A whole number of vectors looks the same in each order to Adam, and needs no copies.
  const std::int64_t elements = c10::multiply_integers(shape);
  CHECK(shows_memory_order(*OptimizerConfig{.type = AdamConfig{}}.make(), order, elements, 4) ==
        (shape[0] == 5));
  CHECK(shows_memory_order(*OptimizerConfig{.type = AdafactorConfig{}}.make(), order, elements, 4));
}

TEST_CASE("Muon has the hidden matrices, AdamW all else", "[model_optimizer]") {
  const Model model = convnet();
  const auto momentum_of = [&](const MuonConfig& config, const std::string& layer, std::size_t parameter) {
    const ModelOptimizer optimizer = optimizer_of({.type = config}, model);
    return optimizer.state_of(layer_named(model, layer), parameter).front().name == "momentum_buffer";
  };
  CHECK_FALSE(momentum_of({}, "group0.conv0", 0));  // the first layer with a matrix
  CHECK_FALSE(momentum_of({}, "group0.norm0", 0));  // a vector
  CHECK(momentum_of({}, "classifier0.linear", 0));
  CHECK_FALSE(momentum_of({}, "classifier0.linear", 1));  // its bias
  CHECK(momentum_of({}, "classifier1.linear", 0));
  CHECK_FALSE(momentum_of({}, model.layers.back()->name(), 0));
  const MuonConfig named{.adam_parameters = {"classifier1.*"}};
  CHECK(momentum_of(named, "classifier0.linear", 0));
  CHECK_FALSE(momentum_of(named, "classifier1.linear", 0));
}

TEST_CASE("tables of embeddings are AdamW's wherever they stand", "[model_optimizer]") {
  CapturedConfig captured;
  captured.path = STAGECRAFT_CAPTURED_MODELS "/columns";
  const SampleSpec sample{.shape = {3}, .dtype = at::kLong, .fields = {{"kind", {}, at::kLong}}};
  const Model model = build_model({captured}, sample, at::kFloat, {"test", "/model"});
  const ModelOptimizer optimizer = optimizer_of({.type = MuonConfig{}}, model);
  for (const auto& [layer, is_muon] : std::map<std::string, bool>{
           {"colours", false}, {"shapes", false}, {"pairs", false}, {"kinds", false}, {"hidden", true}}) {
    INFO(layer);
    CHECK((optimizer.state_of(layer_named(model, layer), 0).front().name == "momentum_buffer") == is_muon);
  }
}

TEST_CASE("a parameter belongs to the first group that it fits", "[model_optimizer]") {
  const Model model = convnet();
  const int layer = layer_named(model, "classifier0.linear");
  SgdConfig sgd{.lr = 0.5, .weight_decay = 0.25};
  const ModelOptimizer optimizer =
      optimizer_of({.type = sgd,
                    .groups = {group_of({"classifier0.*"}, 1, 0.125, {}),
                               group_of({"group*", "classifier0.*"}, {}, {}, 0)}},
                   model);
  LayerRun run(model, layer);
  const Tensors before{run.parameters[0].clone(), run.parameters[1].clone()};
  run.step(optimizer, /*rate=*/0.25);  // of a schedule that is at half of the optimizer's
  CHECK(at::allclose(run.parameters[0], before[0] - 0.25 * run.gradients[0], 1e-6, 1e-7));
  CHECK(at::allclose(run.parameters[1], before[1] - 0.0625 * (run.gradients[1] + 0.25 * before[1]), 1e-6,
                     1e-7));
}

TEST_CASE("groups that fit no parameter are refused where they stand", "[model_optimizer]") {
  const Model model = convnet();
  const auto complaint = [&](const ParameterGroup& group, double lr = 0.1) -> std::string {
    try {
      (void)optimizer_of({.type = SgdConfig{.lr = lr}, .groups = {{}, group}}, model);
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  };
  CHECK(complaint({}) == "");
  const std::string text = complaint(group_of({"*", "clasifier0.linear.weight"}, {}, {}, {}));
  CHECK(text.find("run.json: /optimizer/groups/1/parameters/1: ") == 0);
  CHECK(text.find("did you mean \"classifier0.linear.weight\"?") != std::string::npos);
  CHECK(complaint(group_of({"*"}, 0, {}, {})).find("/optimizer/groups/1/most_dimensions: ") !=
        std::string::npos);
  CHECK(complaint(group_of({"*"}, {}, 0.2, {}), 0).find("/optimizer/groups/1/lr: ") != std::string::npos);
}

TEST_CASE("weights that are read late are ahead by the last update, and the next one starts behind that",
          "[model_optimizer]") {
  const Model model = convnet();
  const ModelOptimizer plain = optimizer_of({.type = SgdConfig{}, .ema_decay = 0.8}, model);
  const ModelOptimizer ahead =
      optimizer_of({.type = SgdConfig{}, .ema_decay = 0.8, .staleness = {.look_ahead = 0.5}}, model);
  const int layer = layer_named(model, "classifier0.linear");
  LayerRun expected(model, layer), run(model, layer);
  const at::Tensor before = expected.parameters[0].clone();
  expected.gradients = run.gradients;
  const auto step = [&](double staleness) {
    expected.step(plain);
    ahead.step(layer, {.learning_rate = 0.01, .weights_staleness = staleness}, run.parameters, run.gradients,
               {true, true}, run.state);
  };
  step(3);
  const at::Tensor last_update = expected.parameters[0] - before;
  CHECK(at::allclose(run.parameters[0], expected.parameters[0] + 1.5 * last_update));
  const auto averages_agree = [&] {
    return at::allclose(run.state.tensors[0][kAveragedWeights], expected.state.tensors[0][kAveragedWeights]);
  };
  CHECK(averages_agree());
  step(0);
  CHECK(averages_agree());
  CHECK(at::allclose(run.parameters[0], expected.parameters[0]));
  CHECK(at::count_nonzero(run.state.tensors[0][kLookAhead]).item<int>() == 0);
}

TEST_CASE("rates of late gradients are discounted, ever less", "[model_optimizer]") {
  const Model model = convnet();
  const ModelOptimizer optimizer =
      optimizer_of({.type = SgdConfig{}, .staleness = {.discount_steps = 2}}, model);
  const int layer = layer_named(model, "classifier0.linear");
  LayerRun run(model, layer);
  for (const double rate : {0.04 / 4, 0.04 / 2, 0.04}) {  // (1 + 3)^-1, then its root, then none
    const at::Tensor expected = run.parameters[0] - rate * run.gradients[0];
    optimizer.step(layer, {.learning_rate = 0.04, .gradients_staleness = 3}, run.parameters, run.gradients,
                   {true, true}, run.state);
    CHECK(at::allclose(run.parameters[0], expected));
  }
}

TEST_CASE("a parameter without a gradient stays as it is, decay and momentum included", "[model_optimizer]") {
  const Model model = convnet();
  for (const OptimizerConfig& config : one_of_each()) {
    INFO(config.type.name());
    const ModelOptimizer optimizer = optimizer_of(config, model);
    LayerRun run(model, layer_named(model, "classifier0.linear"));
    run.step(optimizer);
    const Tensors before{run.parameters[0].clone(), run.parameters[1].clone()};
    std::map<std::string, at::Tensor> state;
    for (const auto& [name, tensor] : run.state.tensors[0]) state[name] = tensor.clone();
    run.gradients[0].zero_();
    optimizer.step(run.layer, {0.01}, run.parameters, run.gradients, {false, true}, run.state);
    CHECK(at::equal(run.parameters[0], before[0]));
    CHECK_FALSE(at::equal(run.parameters[1], before[1]));
    for (const auto& [name, tensor] : run.state.tensors[0]) {
      if (name != kAveragedWeights) CHECK(at::equal(tensor, state[name]));
    }
  }
}

TEST_CASE("the first average is the weights, later ones move towards them", "[model_optimizer]") {
  const Model model = convnet();
  const ModelOptimizer optimizer = optimizer_of({.type = SgdConfig{.lr = 0.1}, .ema_decay = 0.75}, model);
  CHECK(optimizer.averages_weights());
  LayerRun run(model, 0);
  run.step(optimizer, 0.1);
  const at::Tensor first = run.state.tensors[0].at(kAveragedWeights).clone();
  CHECK(at::equal(first, run.parameters[0]));
  run.step(optimizer, 0.1);
  CHECK(at::allclose(run.state.tensors[0].at(kAveragedWeights), 0.75 * first + 0.25 * run.parameters[0], 1e-6,
                     1e-7));
}
