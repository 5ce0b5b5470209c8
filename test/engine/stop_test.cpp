// Signals stop a run behind a checkpoint, whatever it is doing.

#include "base/json.h"
#include "engine/run/save/checkpoint.h"
#include "engine/run/save/checkpoint_folder.h"
#include "test/engine/trainer_cases.h"
#include "test/support/catch.h"

#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

namespace stagecraft::test {
namespace fs = std::filesystem;

TEST_CASE("a signal stops a run behind a checkpoint, and the rest is as if it had not been", "[stop]") {
  Json config = tiny_config();
  config["train_steps"] = 40;
  config["checkpoint"]["every_steps"] = 0;
  const Run whole(config);
  (void)whole.train();
  const Run run(config);
  const TrainResult stopped = run.stopped_at("step   5/40");
  CHECK(stopped.outcome.stopped_by == SIGTERM);
  CHECK(stopped.outcome.steps < 40);
  CHECK(newest_checkpoint(RunPaths{run.dir()}.checkpoints()) == stopped.outcome.last_checkpoint);
  (void)run.train(true);
  check_same(whole.metrics(), run.metrics());
  check_same_files(whole.checkpoint(40), run.checkpoint(40));
}

TEST_CASE("an asynchronous run is stopped by a signal at its next drain point", "[stop]") {
  Json config = tiny_config();
  config["pipeline"] = {{"schedule", "pipedream"}, {"cuts", {2}}};
  config["train_steps"] = 700;  // of four micro-batches: drains by itself after 256 steps and 512
  config["checkpoint"]["every_steps"] = 0;
  config["validation"]["every_steps"] = 0;
  config["steps_per_print"] = 100;
  const Run whole(config);
  (void)whole.train();
  const Run run(config);
  const TrainResult stopped = run.stopped_at("step  300/700");
  CHECK(stopped.outcome.stopped_by == SIGTERM);
  CHECK(stopped.outcome.steps == 512);
  CHECK(says(run.complaint(true, {"checkpoint.every_steps=7"}), "/checkpoint/every_steps"));
  (void)run.train(true);
  check_same(whole.metrics(), run.metrics());
  check_same_files(whole.checkpoint(700), run.checkpoint(700));
}

TEST_CASE("a signal during the last step does not stop a run that is over with it", "[stop]") {
  Json config = tiny_config();
  config["data"]["validation_samples"] = 0;
  const Run run(config);
  const TrainResult result = run.stopped_at("step  9/9");
  CHECK(result.outcome.stopped_by == 0);
  CHECK(result.outcome.steps == 9);
}

TEST_CASE("a signal during a save stops the run behind that save", "[stop]") {
  Json config = tiny_config();
  config["model"]["hidden"] = std::vector<int>(60, 8);  // many files, so that a save takes a while
  config["train_steps"] = 30;
  const Run run(config);
  const auto saving = [&] {
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(run.dir() + "/checkpoints", ignored)) {
      if (entry.path().filename().native().starts_with("step-")) return true;
    }
    return false;
  };
  std::atomic<bool> over = false;
  std::thread watcher([&] {
    while (!over && !saving()) std::this_thread::yield();
    if (!over) ::kill(::getpid(), SIGTERM);
  });
  const TrainOutcome outcome = run.train(true).result.outcome;
  over = true;
  watcher.join();
  CHECK(outcome.stopped_by == SIGTERM);
  CHECK(outcome.steps == 3);
  CHECK(read_manifest(outcome.last_checkpoint).step == 3);
  CHECK(json::parse_file(run.dir() + "/exit.json")["code"] == 75);
}

TEST_CASE("a signal during a validation stops the run behind it", "[stop]") {
  Json config = tiny_config();
  config["checkpoint"]["every_steps"] = 0;
  const Run whole(config);
  (void)whole.train();
  const Run run(config);
  const TrainResult stopped = run.stopped_at("valid 4/9");
  CHECK(stopped.outcome.stopped_by == SIGTERM);
  CHECK(stopped.outcome.steps == 4);
  (void)run.train(true);
  check_same(whole.metrics(), run.metrics());
  check_same_files(whole.checkpoint(9), run.checkpoint(9));
}

TEST_CASE("a signal during a validation ends it at once, and it is made from its beginning on resume",
          "[stop]") {
  Json config = tiny_config();
  config["data"]["validation_samples"] = 20'000;
  config["steps_per_print"] = 0;
  config["log"] = {{"level", "debug"}};
  config["model"]["hidden"] = {16, 12, 12, 12, 12, 12};
  SECTION("straight") {}
  SECTION("not saved behind the step before") { config["checkpoint"]["every_steps"] = 4; }
  SECTION("loops") { config["pipeline"] = {{"schedule", "interleaved_1f1b"}, {"cuts", {2, 4, 6}}}; }
  SECTION("a V") { config["pipeline"] = {{"schedule", "zb_v"}, {"cuts", {2, 4, 6}}}; }
  SECTION("replicas") { config["pipeline"] = {{"schedule", "1f1b"}, {"cuts", {2}}, {"widths", {2, 1}}}; }
  SECTION("replicas of the last stage") {
    config["pipeline"] = {{"schedule", "1f1b"}, {"cuts", {2}}, {"widths", {1, 3}}};
  }
  SECTION("one stage") { config["pipeline"] = {{"schedule", "1f1b"}, {"stages", 1}}; }
  const Run whole(config);
  (void)whole.train();
  const Run run(config);
  std::atomic<bool> over = false;
  std::thread watcher([&] {
    const std::string log = RunPaths{run.dir()}.log(Rank{0});
    constexpr std::chrono::milliseconds kPause{2};  // the ranks need the cores
    while (!over && !says(read_text_file(log), "validation after step 4"))
      std::this_thread::sleep_for(kPause);
    if (!over) ::kill(::getpid(), SIGTERM);
  });
  const TrainOutcome outcome = run.train().result.outcome;
  over = true;
  watcher.join();
  CHECK(outcome.stopped_by == SIGTERM);
  CHECK(outcome.steps == 4);
  CHECK_FALSE(run.metrics().back().validation);
  CHECK(read_manifest(outcome.last_checkpoint).step == 4);
  CHECK(read_manifest(outcome.last_checkpoint).validation_owed);
  (void)run.train(true);
  check_same(whole.metrics(), run.metrics());
  check_same_files(whole.checkpoint(9), run.checkpoint(9));
}

TEST_CASE("a validation that a signal left owing is made up for, and the step times stay", "[stop]") {
  const Run run(tiny_config());
  const TrainResult stopped = run.stopped_at("step  9/9");
  CHECK(stopped.outcome.stopped_by == SIGTERM);  // the last validation is still to come
  const RunPaths paths{run.dir()};
  const std::string timeline = read_text_file(paths.timeline());
  const RunSummary resumed = run.train(true).result.outcome.summary;
  CHECK(resumed.last_validation->step == 9);
  CHECK(resumed.step.median.value == Approx(stopped.outcome.summary.step.median.value));
  CHECK(read_text_file(paths.timeline()) == timeline);
}

}  // namespace stagecraft::test
