#include "engine/optimizers/optimizer.h"

#include "engine/optimizers/adam.h"
#include "engine/optimizers/optimizer_config.h"
#include "engine/optimizers/sgd.h"
#include "engine/records/settings/learning_rate.h"
#include "models/layers/gradient_accumulator.h"
#include "test/support/catch.h"

#include <ATen/ATen.h>

#include <cmath>
#include <numbers>

using namespace stagecraft;

namespace {

constexpr int kUpdates = 5;

/// Two parameters, one of which decays, through `kUpdates` updates in double precision.
struct Run {
  std::vector<at::Tensor> parameters, expected;
  std::vector<std::vector<at::Tensor>> gradients;
  std::vector<bool> decays{true, false};
  std::vector<std::vector<Tensors>> state;  // by parameter, as in OptimizerUpdate

  Run() {
    auto generator = at::detail::createCPUGenerator(3);
    for (const std::int64_t size : {7, 20}) {
      parameters.push_back(at::randn({size}, generator, at::kDouble));
      expected.push_back(parameters.back().clone());
      auto& own = gradients.emplace_back();
      for (int t = 0; t < kUpdates; ++t) own.push_back(at::randn({size}, generator, at::kDouble));
    }
  }
  void update(const OptimizerConfig& config, double lr, int t) {
    const OptimizerPtr optimizer = config.make();
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const ParameterSite site{"layer.bias", parameters[i].sizes().vec()};
      OptimizerUpdate update{.parameters = {parameters[i]},
                             .gradients = {gradients[i][t]},
                             .learning_rate = lr,
                             .weight_decay = decays[i] ? optimizer->weight_decay(site) : 0,
                             .earlier_steps = t};
      if (t == 0) state.emplace_back();
      for (const StateSpec& spec : optimizer->state_of(site)) {
        update.state_names.push_back(spec.name);
        if (t == 0) state[i].push_back({at::zeros(spec.shape, at::kDouble)});
      }
      update.state = state[i];
      optimizer->update(update);
    }
  }
  void compare() const {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      CHECK(at::allclose(parameters[i], expected[i], 1e-12, 1e-14));
    }
  }
};

double rate_at(int t) { return 0.1 / (1 + t); }

}  // namespace

TEST_CASE("SGD follows its formula", "[optimizer]") {
  const SgdConfig config = GENERATE(SgdConfig{}, SgdConfig{.weight_decay = 0.3}, SgdConfig{.momentum = 0.9},
                                    SgdConfig{.momentum = 0.9, .dampening = 0.4, .weight_decay = 0.1},
                                    SgdConfig{.momentum = 0.8, .weight_decay = 0.1, .nesterov = true});
  CAPTURE(config.momentum, config.dampening, config.weight_decay, config.nesterov);
  Run run;
  std::vector<at::Tensor> momentum(2);
  for (int t = 0; t < kUpdates; ++t) {
    run.update({.type = config}, rate_at(t), t);
    for (std::size_t i = 0; i < 2; ++i) {
      at::Tensor d = run.gradients[i][t] + (run.decays[i] ? config.weight_decay : 0) * run.expected[i];
      if (config.momentum != 0) {
        // PyTorch: the buffer starts as the first gradient itself, undampened.
        momentum[i] = t == 0 ? d.clone() : config.momentum * momentum[i] + (1 - config.dampening) * d;
        d = config.nesterov ? d + config.momentum * momentum[i] : momentum[i];
      }
      run.expected[i] = run.expected[i] - rate_at(t) * d;
    }
  }
  run.compare();
  CHECK(run.state[0].size() == (config.momentum != 0 ? 1 : 0));
}

TEST_CASE("Adam and AdamW follow their formulas", "[optimizer]") {
  const bool decoupled = GENERATE(false, true);
  AdamParameters parameters;
  parameters.betas = {0.8, 0.95};
  parameters.eps = 1e-6;
  parameters.weight_decay = 0.2;
  OptimizerConfig config;
  if (decoupled) {
    AdamWConfig adamw;
    static_cast<AdamParameters&>(adamw) = parameters;
    config.type = adamw;
  } else {
    config.type = AdamConfig{parameters};
  }
  Run run;
  std::vector<at::Tensor> m(2), v(2);
  for (int t = 0; t < kUpdates; ++t) {
    run.update(config, rate_at(t), t);
    for (std::size_t i = 0; i < 2; ++i) {
      const double decay = run.decays[i] ? parameters.weight_decay : 0;
      at::Tensor g = run.gradients[i][t];
      if (decoupled) {
        run.expected[i] = run.expected[i] * (1 - rate_at(t) * decay);
      } else {
        g = g + decay * run.expected[i];
      }
      m[i] = (t == 0 ? at::zeros_like(g) : m[i]) * 0.8 + 0.2 * g;
      v[i] = (t == 0 ? at::zeros_like(g) : v[i]) * 0.95 + 0.05 * g * g;
      const at::Tensor m_hat = m[i] / (1 - std::pow(0.8, t + 1));
      const at::Tensor v_hat = v[i] / (1 - std::pow(0.95, t + 1));
      run.expected[i] = run.expected[i] - rate_at(t) * m_hat / (v_hat.sqrt() + parameters.eps);
    }
  }
  run.compare();
  CHECK(run.state[0].size() == 2);
}

TEST_CASE("learning rates follow DeepSpeed's formulas", "[optimizer]") {
  const auto rate = [](const SchedulerConfig& scheduler, std::int64_t step) {
    return scheduler.rate({.step = step, .total_steps = 50, .optimizer_lr = 0.5});
  };
  CHECK(rate({ConstantLRConfig{}}, 7) == 0.5);

  const WarmupLRConfig log{
      .warmup_min_lr = 0.1, .warmup_max_lr = 0.3, .warmup_num_steps = 10, .warmup_type = "log"};
  WarmupLRConfig linear = log;
  linear.warmup_type = "linear";
  CHECK(rate({log}, 0) == Approx(0.1));
  CHECK(rate({log}, 4) == Approx(0.1 + 0.2 * std::log(5.0) / std::log(10.0)));
  CHECK(rate({log}, 9) == Approx(0.3));
  CHECK(rate({linear}, 4) == Approx(0.1 + 0.2 * 0.4));
  CHECK(rate({linear}, 10) == Approx(0.3));
  CHECK(rate({linear}, 1000) == Approx(0.3));

  WarmupDecayLRConfig decay;
  static_cast<WarmupLRConfig&>(decay) = linear;
  CHECK(rate({decay}, 5) == Approx(0.2));
  CHECK(rate({decay}, 10) == Approx(0.3));
  CHECK(rate({decay}, 30) == Approx(0.1 + 0.2 * 20 / 40));  // total: the run's 50 steps
  CHECK(rate({decay}, 60) == Approx(0.1));
  decay.total_num_steps = 20;
  CHECK(rate({decay}, 15) == Approx(0.1 + 0.2 * 5 / 10));

  const WarmupCosineLRConfig cosine{
      .total_num_steps = 40, .warmup_min_ratio = 0.2, .cos_min_ratio = 0.1, .warmup_num_steps = 20};
  CHECK(rate({cosine}, 0) == Approx(0.5 * 0.2));
  CHECK(rate({cosine}, 9) == Approx(0.5 * (0.2 + 0.8 * std::log(10.0) / std::log(20.0))));
  CHECK(rate({cosine}, 29) == Approx(0.5 * (0.1 + 0.9 * (1 + std::cos(std::numbers::pi * 0.5)) / 2)));
  CHECK(rate({cosine}, 39) == Approx(0.5 * 0.1));
  CHECK(rate({cosine}, 100) == Approx(0.5 * 0.1));
  WarmupCosineLRConfig straight = cosine;
  straight.warmup_type = "linear";
  CHECK(rate({straight}, 9) == Approx(0.5 * (0.2 + 0.8 * 9 / 20)));
  CHECK(rate({straight}, 29) == rate({cosine}, 29));

  // A warm-up of none or one step is DeepSpeed's shortest, two.
  CHECK(rate({WarmupLRConfig{.warmup_max_lr = 1, .warmup_num_steps = 0, .warmup_type = "linear"}}, 1) ==
        Approx(0.5));
}

TEST_CASE("a gradient that nothing was added to counts as none, unless replicas added to it", "[optimizer]") {
  GradientAccumulator sums({at::zeros({3}), at::zeros({5})});
  for (int round = 0; round < 2; ++round) {
    sums.clear();
    sums.add(0, at::ones({3}));
    CHECK(sums.received() == std::vector{true, false});
    CHECK(at::equal(sums.gradients()[1], at::zeros({5})));  // for norms and sums
    CHECK(sums.received() == std::vector{true, false});
  }
  sums.receive_all();
  CHECK(sums.received() == std::vector{true, true});
  sums.clear();
  (void)sums.gradients();
  sums.add(1, at::ones({5}));
  CHECK(sums.received() == std::vector{false, true});
}

TEST_CASE("the first contribution to a gradient writes, later ones add", "[optimizer]") {
  const at::Tensor weight = at::zeros({3, 2, 2});  // a convolution's, seen as a matrix by products
  const at::Tensor bias = at::zeros({3});
  const at::Tensor unused = at::zeros({5});
  GradientAccumulator sums({weight, bias, unused});
  const at::Tensor left = at::randn({3, 6});
  const at::Tensor right = at::randn({6, 4});
  for (int round = 0; round < 2; ++round) {
    sums.clear();
    sums.add_product(0, left, right);
    sums.add(1, at::ones({3}));
    CHECK(at::equal(sums.gradients()[0], at::mm(left, right).view({3, 2, 2})));
    sums.add_product(0, left, right);
    sums.add(1, at::ones({3}));
    CHECK(at::equal(sums.gradients()[0], at::addmm(at::mm(left, right), left, right).view({3, 2, 2})));
    CHECK(at::equal(sums.gradients()[1], at::full({3}, 2)));
    CHECK(at::equal(sums.gradients()[2], unused));
  }
}
