// The gradient's norm on a device: how near it is to the CPU's, that it is the same wherever the cuts are, what it
// asks of the device, and when the host hears of it.

#include "engine/core/clipping.h"
#include "engine/core/overflow.h"
#include "test/engine/on_devices.h"
#include "test/support/catch.h"
#include "test/support/demand.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <iostream>
#include <limits>
#include <mutex>
#include <string>
#include <vector>

using namespace stagecraft;
using namespace stagecraft::test;

namespace {

constexpr double kRounding = 0x1p-53;
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

TEST_CASE("a device's norm is the CPU's but for rounding, and takes few operators and no wait", "[norm]") {
  const c10::InferenceMode no_autograd;
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    for (const int count : {1, 2, 7, 50}) {
      INFO(fmt::format("{} gradients of {}", count, c10::toString(type)));
      const Tensors here = some_gradients(count, type);
      Tensors there = to_device(here);
      const std::vector<double> want = sums_of_squares(here);
      const std::int64_t operators = device_operators(), waits = host_waits();
      const at::Tensor squares = squares_on_device(there);
      const at::Tensor norm = norm_of(squares);
      multiply(there, clip_factor(norm, 0.5));
      const std::int64_t took = device_operators() - operators;
      std::cout << fmt::format("norm and factor of {} gradients: {} operators\n", count, took);
      CHECK(took <= 11 + std::bit_width(static_cast<unsigned>(count)));
      CHECK(host_waits() == waits);

      std::int64_t largest = 0;
      std::vector<double> got;
      for (int i = 0; i < count; ++i) {
        got.push_back(squares[i].item<double>());
        const auto n = static_cast<double>(here[i].numel());
        largest = std::max(largest, here[i].numel());
        CHECK(std::abs(got[i] - want[i]) <= (2 * n + 3) * kRounding * want[i]);
      }
      CHECK(got == sums_of_squares(to_device(here)));
      // The host, to whom other ranks tell their part, makes the same of them.
      CHECK(norm.item<double>() == norm_of(got, fake_accelerator()));
      CHECK(clip_factor(norm, 0.5).item<double>() == clip_factor(norm.item<double>(), 0.5));
      const double on_cpu = norm_of(want, at::kCPU);
      CHECK(std::abs(norm.item<double>() - on_cpu) <=
            static_cast<double>(largest + count + 4) * kRounding * on_cpu);
      Tensors by_number = to_device(here);
      multiply(by_number, clip_factor(norm.item<double>(), 0.5));
      for (int i = 0; i < count; ++i) {
        CHECK(at::equal(there[i].cpu(), here[i].mul(clip_factor(norm.item<double>(), 0.5))));
        CHECK(at::equal(by_number[i].cpu(), there[i].cpu()));
      }
    }
  }
}

TEST_CASE("numbers whose squares float32 has not are in a device's norm", "[norm]") {
  const c10::InferenceMode no_autograd;
  for (const double size : {1e-30, 1e-40, 1e30, 3e38}) {
    const at::Tensor gradient = at::full({1000}, size, at::kFloat);
    const double want = sums_of_squares({gradient}).front();
    const double got = squares_on_device(to_device({gradient}))[0].item<double>();
    CHECK(got == Approx(want).epsilon(1e-12));
    CHECK(std::isfinite(got));
  }
  CHECK(std::isinf(squares_on_device(to_device({at::full({3}, kInf, at::kFloat)}))[0].item<double>()));
}

TEST_CASE("a gradient that another one counts for is none of the norm's", "[norm]") {
  const c10::InferenceMode no_autograd;
  const Tensors all = to_device(some_gradients(3, at::kFloat));
  const at::Tensor squares = squares_on_device({at::Tensor(), all[0], at::Tensor(), all[2]});
  CHECK(squares[0].item<double>() == 0);
  CHECK(squares[1].item<double>() == squares_on_device(all)[0].item<double>());
  CHECK(squares[3].item<double>() == squares_on_device(all)[2].item<double>());
  CHECK((sums_of_squares({at::Tensor(), at::Tensor()}) == std::vector<double>{0, 0}));
  CHECK((sums_of_squares({at::Tensor(), at::full({2}, 3, at::kFloat)}) == std::vector<double>{0, 18}));
}

TEST_CASE("sums of squares are added in one order, by the host and by the device", "[norm]") {
  const c10::InferenceMode no_autograd;
  at::manual_seed(3);
  for (std::int64_t count = 1; count < 70; ++count) {
    const at::Tensor squares = at::rand({count}, at::kDouble).pow(5);
    const std::vector<double> numbers(squares.const_data_ptr<double>(),
                                      squares.const_data_ptr<double>() + count);
    CHECK(norm_of(squares.to(fake_accelerator())).item<double>() == norm_of(numbers, fake_accelerator()));
    double sum = 0;
    for (const double number : numbers) sum += number;
    CHECK(norm_of(numbers, at::kCPU) == std::sqrt(sum));
  }
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
