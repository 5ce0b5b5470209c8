// Ranks that are slower than planned, told by what all ranks show of their last steps.

#include "engine/run/show/slow_ranks.h"

#include "base/json.h"
#include "engine/records/report/rank_record.h"
#include "test/support/catch.h"
#include "test/support/command.h"
#include "test/support/scratch_folder.h"

#include <fmt/format.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

using namespace stagecraft;

namespace {

/// A run of two ranks, a stage each, whose records are made by hand.
class Shown {
 public:
  Shown() : plan_(read_plan(STAGECRAFT_TEST_DATA "/run/plan.json")) {
    REQUIRE(plan_.placement().world() == 2);
    std::filesystem::create_directories(folder_.path("live"));
  }

  /// One step of each rank, as many times as long as planned.
  void show(std::int64_t step, std::vector<double> factors) {
    for (std::size_t r = 0; r < factors.size(); ++r) {
      const Rank rank{r};
      const StageId stage{r};
      const StageCosts& costs = plan_.costs->stages[r];
      RankRecord record;
      record.rank = rank;
      record.name = "rank";
      record.boot = "here";
      Seconds now{static_cast<double>(step)};
      for (int mb = 0; mb < plan_.micro_batches; ++mb) {
        for (const auto& [op, time] : {std::pair{Op::forward, costs.forward},
                                       {Op::backward, costs.backward_input + costs.backward_weight}}) {
          const Seconds end = now + Seconds{time.value * factors[r]};
          record.events.push_back({.rank = rank,
                                   .action = {.op = op, .stage = stage, .micro_batch = MicroBatch{mb}},
                                   .begin = now,
                                   .end = end,
                                   .step = step});
          now = end;
        }
      }
      folder_.write(fmt::format("live/rank-{}.json", r), record_json(record).dump());
    }
  }

  [[nodiscard]] SlowRanks ranks(std::optional<PlanSources> sources = {}) const {
    return SlowRanks(RunPaths{folder_.path("")}, plan_, {"rank 0: stage 0", "rank 1: stage 1"},
                     std::move(sources));
  }

 private:
  test::ScratchFolder folder_;
  Plan plan_;
};

}  // namespace

TEST_CASE("a rank that is slow three times on end is named once, with figures", "[slow_ranks]") {
  Shown run;
  SlowRanks ranks = run.ranks();
  CHECK(ranks.look().text.empty());  // nothing is shown yet
  std::int64_t step = 0;
  const auto look = [&](double first, double second) {
    run.show(step++, {first, second});
    return ranks.look().text;
  };
  CHECK(look(1, 1.5).empty());
  CHECK(ranks.look().text.empty());  // the same steps
  CHECK(ranks.look().text.empty());
  CHECK(look(1, 1.5).empty());
  CHECK(look(1, 1).empty());  // it was a moment
  CHECK(look(1, 1.5).empty());
  CHECK(look(1, 1.5).empty());
  const std::string told = look(1, 1.5);
  INFO(told);
  CHECK(told.starts_with("rank 1: stage 1 computes 1.50 times as long as planned ("));
  CHECK(test::says(told, "the others 1.00 times), and all wait for it"));
  CHECK(test::says(told, "stagecraft report"));
  for (int i = 0; i < 5; ++i) CHECK(look(1, 1.5).empty());
}

TEST_CASE("ranks that are all slow are no news, nor is one that is slow beside fast ones", "[slow_ranks]") {
  Shown run;
  SlowRanks ranks = run.ranks();
  for (std::int64_t step = 0; step < 6; ++step) {
    run.show(step, {1.6, 1.5});
    CHECK(ranks.look().text.empty());
  }
  for (std::int64_t step = 6; step < 12; ++step) {
    run.show(step, {0.5, 1.1});  // as planned, and more was never promised
    CHECK(ranks.look().text.empty());
  }
}
