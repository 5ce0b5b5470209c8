// Gradients that are not finite, planted at chosen steps and layers: runs that skip such steps equal the
// oracle to the bit under every schedule, and runs that stop say where it was.

#include "engine/core/overflow.h"

#include "engine/core/finite.h"
#include "schedules/generators/registry.h"
#include "test/engine/on_devices.h"
#include "test/engine/pipeline_case.h"
#include "test/support/catch.h"
#include "test/support/command.h"
#include "test/support/ranks.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <iostream>
#include <limits>
#include <mutex>

using namespace stagecraft;
using namespace stagecraft::test;

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr std::array kPlaces{Planted::Where::output, Planted::Where::input_gradient,
                             Planted::Where::weight_gradient};

/// In one step, in two in a row behind it, and (the last of seven) at the end; at another place each.
std::vector<Planted> planted_in_turn(std::size_t turn) {
  const auto where = [&](std::size_t i) { return kPlaces[(turn + i) % kPlaces.size()]; };
  return {{1, where(0), kNan}, {3, where(1), kInf}, {4, where(2), -kInf}, {6, where(1), kNan}};
}

/// Batch norm's running statistics would be lost to a planted output, so no convnet.
PipelineCase case_in_turn(const Schedule& schedule, std::size_t turn) {
  PipelineCase next{.schedule = schedule.name,
                    .stages = 2 * schedule.virtual_stages,
                    .ranks = 2,
                    .placement = schedule.placement,
                    .model = turn % 2 == 0 ? ModelKind::mlp : ModelKind::gpt,
                    .shape = turn % 3 == 0 ? BatchShape::short_ends : BatchShape::many,
                    .optimizer = static_cast<CaseOptimizer>(turn % 3),
                    .precision = turn % 4 == 1 ? PrecisionKind::bf16 : PrecisionKind::single,
                    .clipping = schedule.clips ? 0.05 : 0,
                    .delay_seed = turn};
  next.vertical_sync = schedule.takes_vertical_sync && turn % 2 == 1;
  next.recompute = turn % 3 == 1 ? Recompute::all : Recompute::none;
  next.planted = planted_in_turn(turn);
  next.planted_at = static_cast<int>(1 + turn % 5);
  if (!served(next)) next.shape = BatchShape::many;
  return next;
}

/// What each rank of the case ends with when such steps are not skipped.
std::vector<std::string> complaints(const PipelineCase& pipeline) {
  Setting setting(pipeline);
  setting.options.on_overflow = OnOverflow::stop;
  std::vector<std::string> all(static_cast<std::size_t>(setting.placement.world()));
  try {
    run_ranks(setting.placement.world(), {.timeout = Seconds{60}}, [&](Transport& transport) {
      try {
        (void)run_rank(setting, transport);
      } catch (const NotFiniteError& error) {
        all[transport.rank().index()] = error.what();
        throw;
      }
    });
  } catch (const NotFiniteError&) {  // NOLINT: it is in `all`
  } catch (const PeerError&) {       // NOLINT
  }
  return all;
}

}  // namespace

TEST_CASE("one number that is not finite is found wherever it stands", "[overflow]") {
  const c10::InferenceMode no_autograd;
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    for (const std::int64_t size : {1, 31, 32, 33, 64, 100, 1000}) {
      const double largest =
          dtype == at::kFloat ? std::numeric_limits<float>::max() : std::numeric_limits<double>::max();
      const at::Tensor tensor = at::full({size}, largest, dtype);
      CHECK_FALSE(last_not_finite({tensor, tensor.neg()}));
      for (const double value : {kNan, kInf, -kInf}) {
        for (std::int64_t i = 0; i < size; ++i) {
          at::Tensor bad = tensor.clone();
          bad[i] = value;
          if (last_not_finite({bad, tensor}) != 0U) FAIL(value << " at " << i << " of " << size);
        }
      }
    }
  }
  // Large enough for several threads.
  at::Tensor large = at::zeros({3 << 18});
  CHECK_FALSE(last_not_finite({large}));
  for (const std::int64_t i : {std::int64_t{0}, large.numel() / 2, large.numel() - 1}) {
    at::Tensor bad = large.clone();
    bad[i] = kNan;
    CHECK(last_not_finite({bad, bad, large}) == 1U);
  }
  CHECK_FALSE(last_not_finite({}));
  CHECK_FALSE(last_not_finite({at::empty({0})}));
}

TEST_CASE("a device answers late, and says the same", "[overflow]") {
  const c10::InferenceMode no_autograd;
  const at::Tensor good = at::ones({5}).to(fake_accelerator());
  for (const double value : {kNan, kInf, -kInf}) {
    const at::Tensor bad = at::tensor({1.0, value, 2.0}).to(at::kFloat).to(fake_accelerator());
    CHECK(last_not_finite({good, bad, good}) == 1U);
    DeferredFiniteChecks checks(nullptr);
    std::vector<std::size_t> found;
    const auto note = [&](std::size_t at, double largest) {
      found.push_back(at);
      CHECK_FALSE(std::isfinite(largest));
    };
    const std::int64_t waits = host_waits();
    checks.add({bad, good}, note);
    CHECK(found.empty());
    checks.add({good, good}, note);  // behind which the first one's answer is there
    CHECK(found == std::vector<std::size_t>{0});
    CHECK(host_waits() == waits);
    checks.add({good, bad}, note);
    checks.look_at_all();
    CHECK(found == std::vector<std::size_t>{0, 1});
  }
}

TEST_CASE("runs that skip steps equal the oracle to the bit, under every schedule", "[overflow]") {
  int runs = 0;
  for (const Schedule& schedule : schedules()) {
    for (std::size_t turn = 0; turn < 6; ++turn) {
      const PipelineCase pipeline = case_in_turn(schedule, turn);
      INFO(pipeline.name());
      REQUIRE(served(pipeline));
      CHECK(run_locally(pipeline) == "");
      ++runs;
    }
  }
  std::cout << fmt::format("{} runs that skip steps compared with the oracle\n", runs);
}

TEST_CASE("replicas skip together", "[overflow]") {
  std::size_t turn = 0;
  for (const char* schedule : {"1f1b", "pipedream", "2bw"}) {
    for (const std::vector<int>& widths : {std::vector{2, 1}, {1, 2}, {3}}) {
      PipelineCase pipeline = case_in_turn(find_schedule(schedule), turn++);
      pipeline.ranks = 0;
      pipeline.widths = widths;
      pipeline.stages = static_cast<int>(widths.size());
      INFO(pipeline.name());
      REQUIRE(served(pipeline));
      CHECK(run_locally(pipeline) == "");
    }
  }
}

TEST_CASE("on a device steps are skipped as well", "[overflow]") {
  for (const char* schedule : {"1f1b", "pipedream"}) {
    const Setting setting(on_device(case_in_turn(find_schedule(schedule), 0)));
    INFO(setting.pipeline.name());
    CHECK(run_and_compare(setting, over_nccl(setting)) == "");
  }
}

TEST_CASE("ranks that agree on the norm stop together, each naming the same tensor", "[overflow]") {
  for (const Schedule& schedule : schedules()) {
    if (!schedule.clips) continue;
    for (const std::int64_t step : {0, 2, 6}) {
      PipelineCase pipeline = case_in_turn(schedule, 0);
      pipeline.planted = {{step, Planted::Where::weight_gradient, kInf}};
      pipeline.planted_at = 2;
      INFO(pipeline.name());
      const std::vector<std::string> all = complaints(pipeline);
      CHECK(
          says(all.front(), fmt::format("step {}: the gradient of bias in layer planted (stage ", step + 1)));
      CHECK(says(all.front(), "inf"));
      CHECK(std::equal(all.begin() + 1, all.end(), all.begin()));
    }
  }
}

TEST_CASE("without an agreement, a stage stops before its own step", "[overflow]") {
  for (const char* schedule : {"1f1b", "pipedream", "2bw"}) {
    PipelineCase pipeline = case_in_turn(find_schedule(schedule), 0);
    pipeline.clipping = 0;
    pipeline.planted_at = 3;
    for (const Planted::Where where : kPlaces) {
      pipeline.planted = {{4, where, kNan}};
      INFO(pipeline.name());
      const std::vector<std::string> all = complaints(pipeline);
      const auto found = std::find_if(all.begin(), all.end(), [](const auto& text) { return !text.empty(); });
      REQUIRE(found != all.end());
      CHECK(says(*found, "step 5: the gradient of "));
      CHECK(says(*found, "nan"));
      if (where == Planted::Where::weight_gradient) CHECK(says(*found, "bias in layer planted (stage "));
    }
  }
}

TEST_CASE("on a device, a stage without an agreement stops when the answer has come, and nobody waits for it",
          "[overflow]") {
  PipelineCase pipeline = case_in_turn(find_schedule("pipedream"), 0);
  pipeline.planted = {{6, Planted::Where::weight_gradient, kInf}};  // the last: only settle() can hear of it
  Setting setting(on_device(pipeline));
  setting.options.on_overflow = OnOverflow::stop;
  std::string complaint;
  try {
    run_on_devices(setting.placement.world(), over_nccl(setting),
                   [&](Transport& transport) { (void)run_rank(setting, transport); });
  } catch (const std::exception& error) {
    complaint = error.what();
  }
  CHECK(says(complaint, "step 7: the gradient of bias in layer planted (stage "));
}

TEST_CASE("the hundredth skip in a row ends the run", "[overflow]") {
  for (const char* schedule : {"1f1b", "pipedream"}) {
    for (const bool one_good : {false, true}) {
      PipelineCase pipeline{.schedule = schedule, .stages = 2, .clipping = schedule[0] == '1' ? 0.05 : 0};
      for (std::int64_t step = 0; step < 120; ++step) {
        if (!one_good || step != 60) {
          pipeline.planted.push_back({step, Planted::Where::output, kNan});
        }
      }
      Setting setting(pipeline);
      setting.shape.steps = 120;
      setting.options.total_steps = 120;
      std::string complaint;
      std::int64_t skipped = 0;
      std::mutex mutex;
      try {
        run_ranks(2, {.timeout = Seconds{60}}, [&](Transport& transport) {
          const Outcome outcome = run_rank(setting, transport);
          const std::scoped_lock lock(mutex);
          skipped = std::max(skipped, outcome.skipped_steps);
        });
      } catch (const std::exception& error) {
        complaint = error.what();
      }
      if (one_good) {
        CHECK(complaint.empty());
        CHECK(skipped == 119);
      } else {
        CHECK(says(complaint, "step 100: the gradient was not finite in 100 steps in a row"));
      }
    }
  }
}
