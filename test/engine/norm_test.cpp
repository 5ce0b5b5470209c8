// The gradient's norm: that it is clip_grad_norm_'s, the same wherever the cuts are, what it asks of a device, and when
// the host hears of it.

#include "engine/core/clipping.h"
#include "engine/core/overflow.h"
#include "test/engine/on_devices.h"
#include "test/support/catch.h"
#include "test/support/demand.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <cmath>
#include <iostream>
#include <limits>
#include <mutex>
#include <numeric>
#include <string>
#include <vector>

using namespace stagecraft;
using namespace stagecraft::test;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

/// As a model has them: small and large ones.
Tensors some_gradients(int count, at::ScalarType type) {
  at::manual_seed(count);
  Tensors gradients;
  for (int i = 0; i < count; ++i) {
    const std::int64_t numbers = i % 7 == 0 ? 70'001 : 1 + 13 * i;
    gradients.push_back(at::randn({numbers}, at::kDouble).mul_(std::pow(10.0, i % 5 - 3)).to(type));
  }
  return gradients;
}

Tensors to_device(const Tensors& tensors) {
  Tensors moved;
  for (const at::Tensor& tensor : tensors) moved.push_back(tensor.to(fake_accelerator()));
  return moved;
}

/// A run whose ranks agree on the norm, and clip where `limit` is above 0.
Setting with_norm(PipelineCase pipeline, double limit) {
  pipeline.clipping = 0.05;
  Setting setting(on_device(std::move(pipeline)));
  setting.options.gradient_clipping = setting.oracle.gradient_clipping = limit;
  return setting;
}

/// The first difference from the oracle, which is not one of a case's own.
std::string compare(const Setting& setting) {
  std::vector<Outcome> outcomes(static_cast<std::size_t>(setting.placement.world()));
  run_on_devices(setting.placement.world(), over_nccl(setting), [&](Transport& transport) {
    outcomes[transport.rank().index()] = run_rank(setting, transport);
  });
  return difference(outcomes, run_oracle(setting.model, *setting.loss, *setting.data, setting.oracle));
}

}  // namespace

TEST_CASE(
    "norm and factor are those of clip_grad_norm_, and a device makes them with few operators and no wait",
    "[norm]") {
  const c10::InferenceMode no_autograd;
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    for (const int count : {1, 2, 7, 50}) {
      INFO(fmt::format("{} gradients of {}", count, c10::toString(type)));
      const Tensors here = some_gradients(count, type);
      // As torch/nn/utils/clip_grad.py has it.
      Tensors each;
      for (const at::Tensor& gradient : here) each.push_back(at::linalg_vector_norm(gradient, 2));
      const at::Tensor total = at::linalg_vector_norm(at::stack(each), 2);
      const at::Tensor factor = ((total + 1e-6).reciprocal() * 0.5).clamp_max(1.0);

      Tensors there = to_device(here);
      const std::int64_t operators = device_operators(), waits = host_waits();
      const at::Tensor norms = norms_on_device(there);
      const at::Tensor norm = norm_of(norms, at::Tensor());
      multiply(there, clip_factor(norm, 0.5));
      const std::int64_t took = device_operators() - operators;
      std::cout << fmt::format("norm and factor of {} gradients: {} operators\n", count, took);
      CHECK(took <= 9);
      CHECK(host_waits() == waits);
      CHECK(at::equal(norm.cpu(), total));

      // The host, to whom other ranks tell their part, makes the same of them.
      std::vector<std::int64_t> order(static_cast<std::size_t>(count));
      std::iota(order.begin(), order.end(), 0);
      const std::vector<double> told = norms_of(to_device(here));
      CHECK(told == norms_of(here));
      for (const at::Device device : {at::Device(at::kCPU), fake_accelerator()}) {
        CHECK(norm_of(told, order, at::TensorOptions(device).dtype(type)) == total.item<double>());
      }
      const double number = clip_factor(total.item<double>(), 0.5, type);
      CHECK(number == factor.item<double>());
      Tensors by_number = to_device(here);
      multiply(by_number, number);
      for (int i = 0; i < count; ++i) {
        CHECK(at::equal(there[i].cpu(), here[i].mul(factor)));
        CHECK(at::equal(by_number[i].cpu(), there[i].cpu()));
      }
    }
  }
  CHECK(clip_factor(0.25, 0.5, at::kFloat) == 1);
  CHECK(std::isinf(norms_of({at::full({3}, kInf, at::kFloat)}).front()));
}

TEST_CASE("a gradient that another one counts for is none of the norm's", "[norm]") {
  const c10::InferenceMode no_autograd;
  const Tensors all = to_device(some_gradients(3, at::kFloat));
  const at::Tensor norms = norms_on_device({at::Tensor(), all[0], at::Tensor(), all[2]});
  CHECK(norms[0].item<double>() == 0);
  CHECK(norms[1].item<double>() == norms_on_device(all)[0].item<double>());
  CHECK(norms[3].item<double>() == norms_on_device(all)[2].item<double>());
  CHECK((norms_of({at::Tensor(), at::Tensor()}) == std::vector<double>{0, 0}));
  CHECK((norms_of({at::Tensor(), at::full({2}, 3, at::kDouble)}) ==
         std::vector<double>{0, at::linalg_vector_norm(at::full({2}, 3, at::kDouble), 2).item<double>()}));
}

TEST_CASE("norms are added in the order that is asked for, by the host and by the device", "[norm]") {
  const c10::InferenceMode no_autograd;
  at::manual_seed(3);
  bool order_shows = false;
  for (std::int64_t count = 1; count < 70; ++count) {
    const at::Tensor norms = at::rand({count}).pow(5);
    std::vector<double> numbers;
    std::vector<std::int64_t> order, backwards;
    for (std::int64_t i = 0; i < count; ++i) {
      numbers.push_back(norms[i].item<double>());
      backwards.insert(backwards.begin(), i);
      order.push_back(i);
    }
    const double as_they_lie = norm_of(numbers, order, at::kFloat);
    const double turned = norm_of(numbers, backwards, at::kFloat);
    CHECK(as_they_lie == at::linalg_vector_norm(norms, 2).item<double>());
    CHECK(turned == at::linalg_vector_norm(norms.flip(0), 2).item<double>());
    CHECK(turned ==
          norm_of(norms.to(fake_accelerator()), at::tensor(backwards).to(fake_accelerator())).item<double>());
    order_shows |= as_they_lie != turned;
  }
  CHECK(order_shows);
}

TEST_CASE("clipped runs on a device have the same bits wherever the cuts are", "[norm]") {
  // One oracle knows no cuts: one rank applies the norm on its device, several hear of it first.
  for (const ModelKind model : {ModelKind::gpt, ModelKind::tied}) {
    for (const int stages : {1, 2, 3}) {
      const PipelineCase pipeline{.schedule = "1f1b",
                                  .stages = stages,
                                  .model = model,
                                  .optimizer = CaseOptimizer::adamw,
                                  .clipping = 0.05};
      INFO(pipeline.name());
      const Setting setting(on_device(pipeline));
      CHECK(run_and_compare(setting, over_nccl(setting)) == "");
    }
  }
}

TEST_CASE("a norm that nobody waits for is in the report of its step", "[norm]") {
  for (const char* schedule : {"1f1b", "fill_drain", "zb_v"}) {
    for (const std::vector<int>& widths : {std::vector<int>{}, {2, 1}}) {
      if (!widths.empty() && schedule[0] == 'z') continue;
      const bool v = schedule[0] == 'z';
      const Setting setting = with_norm({.schedule = schedule,
                                         .stages = v ? 4 : 2,
                                         .ranks = v ? 2 : 0,
                                         .placement = v ? PlacementKind::v : PlacementKind::straight,
                                         .widths = widths,
                                         .model = ModelKind::tied,
                                         .optimizer = CaseOptimizer::adamw},
                                        /*limit=*/0);
      INFO(setting.pipeline.name());
      CHECK(compare(setting) == "");
    }
  }
}

TEST_CASE(
    "a norm that is not finite is heard in the next step, by all ranks, and at the latest when the run "
    "settles",
    "[norm]") {
  for (const int stages : {1, 2}) {
    for (const double limit : {0.0, 0.05}) {
      for (const std::int64_t step : {0, 2, 6}) {  // the last: only settle() can hear of it
        PipelineCase pipeline{.schedule = "1f1b", .stages = stages};
        pipeline.planted = {{step, Planted::Where::weight_gradient, kInf}};
        pipeline.planted_at = 2;
        Setting setting = with_norm(pipeline, limit);
        setting.options.on_overflow = OnOverflow::stop;
        INFO(setting.pipeline.name());
        std::mutex mutex;
        std::vector<std::string> said;
        std::vector<std::int64_t> steps;
        try {
          run_on_devices(setting.placement.world(), over_nccl(setting), [&](Transport& transport) {
            try {
              (void)run_rank(setting, transport);
            } catch (const NotFiniteError& error) {
              const std::scoped_lock lock(mutex);
              said.emplace_back(error.what());
              steps.push_back(error.step());
              throw;
            }
          });
        } catch (const std::exception&) {  // told by every rank
        }
        REQUIRE(said.size() == static_cast<std::size_t>(stages));
        for (const std::string& text : said) {
          CHECK_THAT(text, Catch::Matchers::ContainsSubstring(fmt::format(
                               "step {}: the gradient of bias in layer planted (stage ", step + 1)));
          CHECK(text == said.front());
        }
        CHECK(steps.front() == step);
      }
    }
  }
}
