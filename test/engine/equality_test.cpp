// Every schedule, at every number of stages, gives the oracle's bits: losses, gradients, weights, buffers,
// optimizer state. All runs send synchronously, poison released slots and delay calls at random.

#include "schedules/generators/registry.h"
#include "test/engine/case_list.h"
#include "test/support/catch.h"

#include <fmt/format.h>

#include <algorithm>
#include <iostream>

using namespace stagecraft;
using namespace stagecraft::test;

namespace {

const std::vector<int> kRanks{1, 2, 3, 4};

void run_all(const std::vector<PipelineCase>& cases) {
  for (const PipelineCase& pipeline : cases) {
    INFO(pipeline.name());
    CHECK(run_locally(pipeline) == "");
  }
  std::cout << fmt::format("{} local runs compared with the oracle\n", cases.size());
}

}  // namespace

TEST_CASE("every schedule is compared, at every number of ranks, on the placement it is for",
          "[equality_fast]") {
  const std::vector<PipelineCase> cases = covering(Cover::pairs, kRanks);
  for (const Schedule& schedule : schedules()) {
    const auto at_home = [&](const PipelineCase& c) {
      return c.schedule == schedule.name && c.placement == schedule.placement && c.widths.empty();
    };
    for (const int ranks : kRanks) {
      INFO(schedule.name << " on " << ranks);
      CHECK(std::any_of(cases.begin(), cases.end(), [&](const PipelineCase& c) {
        return at_home(c) && c.stages == ranks * schedule.virtual_stages && c.rewrite == Rewrite::none;
      }));
    }
    for (const ModelKind model : {ModelKind::mlp, ModelKind::convnet, ModelKind::gpt}) {
      INFO(schedule.name << ", model kind " << static_cast<int>(model));
      CHECK(std::any_of(cases.begin(), cases.end(),
                        [&](const PipelineCase& c) { return at_home(c) && c.model == model; }));
    }
  }
}

TEST_CASE("a captured model equals the oracle, under every schedule", "[equality_fast]") {
  run_all(covering(Cover::values, captured_cases(2)));
}

TEST_CASE("samples cut to several lengths equal the oracle, under every schedule", "[equality_fast]") {
  run_all(covering(Cover::values, lengths_cases(2)));
}

TEST_CASE("values that skip stages equal the oracle, under every schedule that takes skips",
          "[equality_fast]") {
  CHECK(skip_cases().size() >= 16);
  run_all(skip_cases());
}

TEST_CASE("models whose first layers are frozen equal the oracle, under every schedule",
          "[equality_fast][frozen]") {
  for (const int ranks : {2, 3, 4}) {
    const std::vector<PipelineCase> cases = frozen_cases(ranks);
    // Whole stages are, and not only a stage's first layers.
    CHECK(std::any_of(cases.begin(), cases.end(), [](const PipelineCase& c) {
      const Setting setting(c);
      return setting.stage_layers.front().second <= setting.model.gradient_from;
    }));
    run_all(covering(Cover::values, cases));
  }
}

TEST_CASE("a model with tied weights equals the oracle, under every schedule that reads one version",
          "[equality_fast][tied]") {
  for (const int ranks : {1, 2, 3}) run_all(covering(Cover::values, tied_cases(ranks)));
  int skipped = 0;
  int made = 0;
  for (const PipelineCase& pipeline : tied_cases(2)) {
    if (pipeline.precision != PrecisionKind::fp16) continue;
    for (const OracleStep& step : oracle_of(Setting(pipeline)).steps) ++(step.skipped ? skipped : made);
  }
  CHECK(skipped > 10);
  CHECK(made > 10);
}

TEST_CASE("a rank that changes a tied weight's gradient behind the sum is found out",
          "[equality_fast][tied]") {
  const PipelineCase pipeline{.stages = 2, .ranks = 2, .model = ModelKind::tied};
  Mischief mischief;
  mischief.gradients = [](std::int64_t step, int layer, const Tensors& gradients) {
    if (step == 2 && layer == 10) gradients[0].add_(1e-3);
  };
  CHECK(run_locally(pipeline, mischief) != "");
}

TEST_CASE("recomputation changes no bit, under every schedule", "[equality_fast]") {
  std::vector<PipelineCase> cases;
  for (const Schedule& schedule : schedules()) {
    for (const Recompute recompute : {Recompute::all, Recompute::all_but_last}) {
      // In turn: dropout masks are drawn again, and batch norm's running statistics must not be counted
      // twice.
      PipelineCase next{.schedule = schedule.name,
                        .stages = 2 * schedule.virtual_stages,
                        .ranks = 2,
                        .placement = schedule.placement,
                        .recompute = recompute,
                        .model = static_cast<ModelKind>(cases.size() % 3),
                        .shape = cases.size() % 4 < 2 ? BatchShape::short_ends : BatchShape::many,
                        .dropout = true,
                        .delay_seed = cases.size()};
      if (!served(next)) next.shape = BatchShape::many;  // too few micro-batches for it
      REQUIRE(served(next));
      cases.push_back(next);
    }
  }
  run_all(cases);
}

TEST_CASE("a rank or a replica five times slower than the others changes no bit", "[stragglers]") {
  run_all(straggler_cases(3));
}

TEST_CASE("replicas of unequal widths, more ranks than any other case", "[equality]") {
  std::vector<PipelineCase> cases = all_cases(5);
  std::erase_if(cases, [](const PipelineCase& c) { return c.widths.empty(); });
  run_all(covering(Cover::values, cases));
}

TEST_CASE("a captured model on more ranks than any other", "[equality]") {
  const int ranks = GENERATE(5, 6, 7, 8);
  run_all(covering(Cover::values, captured_cases(ranks)));
  run_all(covering(Cover::values, tied_cases(ranks)));
}

// Some 2,500 runs with STAGECRAFT_FULL=1, for a change that may go wrong in one combination.
TEST_CASE("a pipeline equals the oracle to the bit, all pairs of what it is made of", "[equality]") {
  run_all(covering(Cover::pairs, kRanks));
}
