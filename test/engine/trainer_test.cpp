// Whole runs over the local transport: tiny, from a config on disk to the run directory.

#include "base/json.h"
#include "engine/records/metrics/metrics.h"
#include "engine/records/report/report.h"
#include "engine/run/save/checkpoint.h"
#include "engine/run/save/checkpoint_folder.h"
#include "schedules/generators/registry.h"
#include "schedules/generators/schedule.h"
#include "test/engine/trainer_cases.h"
#include "test/support/catch.h"

#include <chrono>
#include <cmath>
#include <filesystem>
#include <string>
#include <thread>

namespace stagecraft::test {
namespace fs = std::filesystem;

TEST_CASE("a run leaves what it says it leaves", "[trainer]") {
  const Run run(tiny_config());
  const Ran ran = run.train();
  CHECK(ran.result.trained);
  CHECK(ran.result.outcome.steps == 9);
  for (const char* table : {"Model: ", "Plan: 2 stages", "Schedule: 1f1b", "Memory", "Batch: 32 samples"}) {
    CHECK(says(ran.printed, table));
  }
  CHECK(says(ran.printed, "step  1/9   loss "));
  CHECK(says(ran.printed, "valid 8/9   loss "));
  const RunPaths paths{run.dir()};
  for (const std::string& path : {paths.config(), paths.plan(), paths.metrics(), paths.timeline(),
                                  paths.summary(), paths.log(Rank{0}), paths.log(Rank{1})}) {
    INFO(path);
    CHECK(fs::file_size(path) > 0);
  }
  CHECK_FALSE(fs::exists(paths.exit_record()));

  const auto metrics = run.metrics();
  REQUIRE(metrics.size() == 9 + 3);  // validation after 4, 8 and 9
  CHECK(metrics[4].validation);
  CHECK(metrics[4].step == 4);
  CHECK(metrics[4].accuracy.has_value());
  CHECK(metrics[0].gradient_norm.value_or(0) > 0);
  CHECK(metrics.back().step == 9);

  // The effective config is a config, and all that follows from the rest is in it.
  const RunConfig effective = read_run_config(paths.config());
  CHECK(effective.gradient_accumulation_steps == 4);
  CHECK(effective.pipeline.stages == 2);

  // The newest two of the checkpoints after 3, 6 and 9 are kept.
  CHECK_FALSE(fs::exists(run.checkpoint(3)));
  CHECK(newest_checkpoint(paths.checkpoints()) == run.checkpoint(9));
  const Manifest manifest = read_manifest(run.checkpoint(6));
  CHECK(manifest.step == 6);
  CHECK(manifest.epoch == 1);
  CHECK(manifest.epoch_step == 1);

  const RunReport report = make_report(read_run(run.dir()));
  CHECK(report.timeline_steps == 3);
  CHECK(report.stage_rows.size() == 2);
  CHECK(report.stage_rows[1].forward.measured->value > 0);
  CHECK(report.memory.size() == 2);
}

TEST_CASE("a run that goes is reported from what its ranks have written, and leaves nothing of that",
          "[trainer]") {
  for (const char* schedule : {"1f1b", "pipedream"}) {
    CAPTURE(schedule);
    Json config = tiny_config();
    config["pipeline"]["schedule"] = schedule;
    config["checkpoint"]["every_steps"] = 3;  // drains
    config["validation"] = Json::object();
    if (schedule == std::string("pipedream")) config["optimizer"]["type"] = "AdamW";
    const Run run(config);
    RunReport seen;
    (void)run.looked_at("step  8/9", [&] {
      for (int i = 0; i < 500 && !seen.bubble; ++i) {
        seen = make_report(read_run(run.dir()));
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
    });
    CHECK_FALSE(seen.ended);
    CHECK(seen.steps == 8);
    CHECK(seen.bubble.has_value());
    CHECK(seen.timeline_steps >= 1);
    REQUIRE(seen.memory.size() == 2);
    for (const MemoryRow& row : seen.memory) CHECK(row.measured <= row.proved);
    for (const StageRow& row : seen.stage_rows) CHECK(row.forward.measured > Seconds{});
    CHECK_FALSE(fs::exists(RunPaths{run.dir()}.live()));
    CHECK(make_report(read_run(run.dir())).ended);
  }
}

TEST_CASE("stages make no difference: metrics and weights are the same to the bit", "[trainer]") {
  Json config = tiny_config();
  config["model"] = {{"family", "mlp"}, {"hidden", {192, 160}}, {"dropout", 0.2}};
  config["threads_per_rank"] = GENERATE(1, 2);
  const Run two(config);
  config["pipeline"] = {{"schedule", "fill_drain"}, {"cuts", {1, 3}}};
  const Run three(config);
  (void)two.train();
  (void)three.train();
  check_same(two.metrics(), three.metrics());
  check_same_files(two.checkpoint(9), three.checkpoint(9));
}

TEST_CASE("schedules make no difference: every synchronous one gives the same metrics and weights",
          "[trainer]") {
  Json config = tiny_config();
  config["pipeline"] = {{"cuts", {1, 3, 5}}};  // under 1f1b
  const Run reference(config);
  (void)reference.train();
  for (const Schedule& schedule : schedules()) {
    if (!schedule.synchronous) continue;
    INFO(schedule.name);
    config["pipeline"] = {{"schedule", schedule.name}};
    config["pipeline"]["cuts"] = schedule.virtual_stages == 1 ? Json{2} : Json{1, 3, 5};
    const Run run(config);
    const TrainResult result = run.train().result;
    CHECK(result.outcome.summary.peak.size() == 2);  // ranks
    check_same(reference.metrics(), run.metrics());
    check_same_files(reference.checkpoint(9), run.checkpoint(9));
    const RunReport report = make_report(read_run(run.dir()));
    CHECK(static_cast<int>(report.stage_rows.size()) == 2 * schedule.virtual_stages);
  }
}

TEST_CASE("the report names the stage that is slower than the plan has it, and no number changes",
          "[trainer]") {
  Json config = tiny_config();
  config["validation"] = config["checkpoint"] = Json::object();
  config["train_steps"] = 4;
  const auto delays = [](double slow) {
    Json layers = Json::array();
    for (const int stage : {0, 1, 2}) {
      const double ms = stage == 1 ? 2 * slow : 2;
      layers.push_back({{"type", "delay"},
                        {"forward_ms", ms},
                        {"backward_input_ms", ms},
                        {"backward_weight_ms", ms},
                        {"features", stage == 2 ? 4 : 16},
                        {"parameters", 3}});
    }
    return Json{{"family", "sequential"}, {"layers", layers}};
  };
  config["model"] = delays(1);
  config["pipeline"] = {{"cuts", {1, 2}}};
  const Run even(config);
  (void)even.train();
  config["model"] = delays(5);
  config["pipeline"] = {
      {"plan", RunPaths{even.dir()}.plan()}};  // of the same model: delays are no part of it
  const Run uneven(config);
  (void)uneven.train();
  check_same(even.metrics(), uneven.metrics());

  const RunReport report = make_report(read_run(uneven.dir()));
  REQUIRE(report.stage_rows.size() == 3);
  const auto error = [&](int stage) {
    return report.stage_rows[static_cast<std::size_t>(stage)].forward.error().value();
  };
  CHECK(error(1) > 1);
  CHECK(error(1) > error(0));
  CHECK(error(1) > error(2));
}

TEST_CASE("a run whose loss is no number any more stops before it saves that", "[trainer]") {
  Json config = tiny_config();
  config["optimizer"] = {{"type", "SGD"}, {"params", {{"lr", 1e30}}}};
  config["checkpoint"] = {{"every_steps", 1}, {"keep", 1}};
  const Run run(config);
  CHECK(says(run.complaint(false), "is not finite"));
  for (const MetricsRecord& record : run.metrics()) CHECK(std::isfinite(record.loss));
  const std::string newest = newest_checkpoint(RunPaths{run.dir()}.checkpoints());
  CHECK(read_manifest(newest).step == run.metrics().back().step);
}

TEST_CASE("measured memory is never more than was proved, and close to it", "[trainer]") {
  // Wide layers, few samples: gradients and their norm are what memory goes to.
  Json config = tiny_config();
  config["model"] = {{"family", "mlp"}, {"hidden", {512, 384, 256}}};
  config["data"]["shape"] = {64};
  for (const Schedule& schedule : schedules()) {
    config["pipeline"] = {{"schedule", schedule.name}};
    config["pipeline"]["cuts"] = schedule.virtual_stages == 1 ? Json{2} : Json{2, 3, 5};
    config["gradient_norm"] = schedule.clips;
    const Run run(config);
    const RunSummary summary = run.train().result.outcome.summary;
    REQUIRE(summary.peak.size() == 2);
    REQUIRE(summary.proved_peak.size() == 2);
    for (std::size_t r = 0; r < 2; ++r) {
      INFO(schedule.name << ", rank " << r << ": " << summary.peak[r].value << " of "
                         << summary.proved_peak[r].value);
      CHECK(summary.peak[r] <= summary.proved_peak[r]);
      CHECK(static_cast<double>(summary.peak[r].value) >
            0.9 * static_cast<double>(summary.proved_peak[r].value));
    }
  }
}

TEST_CASE("a failing rank ends the run with its own error, in exit.json too", "[trainer]") {
  Json config = tiny_config();
  config["train_steps"] = 3;
  const Run run(config);
  (void)run.train();
  // A folder where rank 1 wants its log.
  fs::remove(run.dir() + "/logs/rank-1.log");
  fs::create_directories(run.dir() + "/logs/rank-1.log");
  const std::string what = run.complaint(true, {"train_steps=6"});
  CHECK(says(what, "rank-1.log"));
  const Json exit = json::parse_file(run.dir() + "/exit.json");
  CHECK(exit["rank"] == 1);
  CHECK(exit["code"] == 2);
}

TEST_CASE("a dry run proves and shows, and writes nothing", "[trainer]") {
  const Run run(tiny_config());
  const ScratchFolder folder;
  Json config = tiny_config();
  config["run_dir"] = run.dir();
  TrainRequest request;
  request.config = folder.write("run.json", config.dump());
  request.dry_run = true;
  std::string printed;
  TrainOutput output{[&](const std::string& text) { printed += text; }, [](const std::string&) {}, [] {}};
  const TrainResult result = stagecraft::train(request, output);
  CHECK_FALSE(result.trained);
  CHECK(says(printed, "program shapes proved"));
  CHECK_FALSE(says(printed, "warning"));
  CHECK(result.effective_config["pipeline"]["stages"] == 2);
  CHECK_FALSE(fs::exists(run.dir()));

  request.overrides = {"pipeline.schedule=pipedream", "gradient_norm=false"};
  (void)stagecraft::train(request, output);
  CHECK(says(printed,
             "warning: AdamW lags behind synchronous runs with gradients that are up to 1 update late"));
}

}  // namespace stagecraft::test
