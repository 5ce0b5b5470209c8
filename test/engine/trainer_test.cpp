// Whole runs over the local transport: tiny, from a config on disk to the run directory.

#include "stagecraft/base/files.h"
#include "stagecraft/base/json.h"
#include "stagecraft/engine/metrics/metrics.h"
#include "stagecraft/engine/report/report.h"
#include "stagecraft/engine/run/checkpoint.h"
#include "stagecraft/engine/run/checkpoint_folder.h"
#include "stagecraft/engine/run/train.h"
#include "stagecraft/models/safetensors.h"
#include "stagecraft/schedules/generators/registry.h"
#include "stagecraft/schedules/generators/schedule.h"
#include "test/support/catch.h"
#include "test/support/command.h"

#include <fmt/format.h>

#include <atomic>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>
#include <unistd.h>

using namespace stagecraft;
using test::ScratchFolder;
namespace fs = std::filesystem;

namespace {

/// 150 samples in batches of 32: five steps an epoch, the last one short.
Json tiny() {
  return Json::parse(R"({
    "model": {"family": "mlp", "hidden": [16, 12], "dropout": 0.1},
    "data": {"type": "synthetic", "samples": 150, "validation_samples": 40, "shape": [8], "classes": 4},
    "loss": {"type": "cross_entropy"},
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
    "train_batch_size": 32,
    "train_micro_batch_size_per_gpu": 8,
    "train_steps": 9,
    "seed": 3,
    "threads_per_rank": 1,
    "steps_per_print": 1,
    "profiler": {"repeats": 2, "warmup_ms": 0},
    "pipeline": {"schedule": "1f1b", "cuts": [2]},
    "validation": {"every_steps": 4},
    "checkpoint": {"every_steps": 3},
    "log": {"timeline_steps": 3}
  })");
}

struct Ran {
  std::string printed;
  TrainResult result;
};

class Run {
 public:
  explicit Run(Json config) : config_(std::move(config)) { config_["run_dir"] = dir(); }

  Ran train(bool resume = false, const std::vector<std::string>& overrides = {}) const {
    Ran ran;
    TrainRequest request;
    request.config = folder_.write("run.json", config_.dump());
    request.overrides = overrides;
    request.resume = resume;
    TrainOutput output;
    output.print = [&](const std::string& text) { ran.printed += text; };
    output.note = [](const std::string&) {};
    ran.result = stagecraft::train(request, output);
    return ran;
  }
  std::string complaint(bool resume, const std::vector<std::string>& overrides = {}) const {
    try {
      (void)train(resume, overrides);
      return "";
    } catch (const InputError& error) {
      return error.what();
    }
  }
  /// SIGTERM is raised when `line` is printed: in the middle of the run, on a rank's own thread.
  TrainResult stopped_at(const std::string& line) const {
    bool raised = false;
    TrainRequest request;
    request.config = folder_.write("run.json", config_.dump());
    TrainOutput output;
    output.print = [&](const std::string& text) {
      if (raised || !test::says(text, line)) return;
      raised = true;
      std::raise(SIGTERM);
    };
    output.note = [](const std::string&) {};
    return stagecraft::train(request, output);
  }
  [[nodiscard]] std::string dir() const { return folder_.path("run"); }
  [[nodiscard]] std::string checkpoint(int step) const {
    return fmt::format("{}/checkpoints/step-{:08}", dir(), step);
  }
  [[nodiscard]] std::vector<MetricsRecord> metrics() const { return read_metrics(RunPaths{dir()}.metrics()); }

 private:
  ScratchFolder folder_;
  Json config_;
};

using stagecraft::test::says;

/// Everything of the records that is no time, to the bit.
void check_same(const std::vector<MetricsRecord>& a, const std::vector<MetricsRecord>& b) {
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    INFO("record " << i);
    CHECK(a[i].step == b[i].step);
    CHECK(a[i].validation == b[i].validation);
    CHECK(a[i].loss == b[i].loss);
    CHECK(a[i].accuracy == b[i].accuracy);
    CHECK(a[i].gradient_norm == b[i].gradient_norm);
    CHECK(a[i].loss_scale == b[i].loss_scale);
    CHECK(a[i].skipped == b[i].skipped);
    CHECK(a[i].learning_rate == b[i].learning_rate);
  }
}

void check_same_files(const std::string& a, const std::string& b) {
  for (const CheckpointFile& file : read_manifest(a).files) {
    INFO(file.name);
    const bool same = test::read_text_file(a + "/" + file.name) == test::read_text_file(b + "/" + file.name);
    CHECK(same);  // not the bytes themselves: nobody reads them in a log
  }
}

}  // namespace

TEST_CASE("a run leaves what it says it leaves", "[trainer]") {
  const Run run(tiny());
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
  CHECK(report.stage_rows[1].forward.measured.value > 0);
  CHECK(report.memory.size() == 2);
}

TEST_CASE("stages make no difference: metrics and weights are the same to the bit", "[trainer]") {
  Json config = tiny();
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
  Json config = tiny();
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

TEST_CASE("a resumed run goes on to the bit, with other stages too", "[trainer]") {
  const Run whole(tiny());
  (void)whole.train();
  const std::string other_stages =
      GENERATE(std::string("pipeline.cuts=[2]"), std::string("pipeline.cuts=[1,4]"),
               std::string(R"(pipeline={"schedule": "interleaved_1f1b", "cuts": [1, 3, 5]})"));
  INFO(other_stages);
  Json half = tiny();
  half["train_steps"] = 6;
  half["validation"]["every_steps"] = 4;
  half["data"]["validation_samples"] = 40;
  const Run run(half);
  (void)run.train();
  (void)run.train(true, {"train_steps=9", other_stages});
  auto metrics = run.metrics();
  // The first part ended with a validation of its own, after step 6.
  std::erase_if(metrics, [](const MetricsRecord& r) { return r.validation && r.step == 6; });
  check_same(whole.metrics(), metrics);
  check_same_files(whole.checkpoint(9), run.checkpoint(9));
}

TEST_CASE("runs in mixed precision resume to the bit, in the middle of a changing loss scale", "[trainer]") {
  Json config = tiny();
  const bool half = GENERATE(false, true);
  if (half) {
    config["fp16"] = {
        {"enabled", true}, {"initial_scale_power", 24}, {"loss_scale_window", 2}, {"hysteresis", 1}};
  } else {
    config["bf16"] = {{"enabled", true}};
  }
  const Run whole(config);
  (void)whole.train();
  config["train_steps"] = 3;
  const Run run(config);
  (void)run.train();
  (void)run.train(true, {"train_steps=9", "pipeline.cuts=[1,4]"});
  auto metrics = run.metrics();
  std::erase_if(metrics, [](const MetricsRecord& r) { return r.validation && r.step == 3; });
  check_same(whole.metrics(), metrics);
  check_same_files(whole.checkpoint(9), run.checkpoint(9));
  const auto skipped = [](const MetricsRecord& r) { return r.skipped; };
  CHECK(std::any_of(metrics.begin(), metrics.end(), skipped) == half);
}

TEST_CASE("an asynchronous run resumes to the bit at a drain point, and only with its own stages",
          "[trainer]") {
  Json config = tiny();
  config["pipeline"] = {{"schedule", GENERATE("pipedream", "2bw")}, {"cuts", {2}}};
  config["gradient_norm"] = false;
  const Run whole(config);
  (void)whole.train();
  config["train_steps"] = 6;
  const Run run(config);
  (void)run.train();
  CHECK(says(run.complaint(true, {"train_steps=9", "pipeline.cuts=[1]"}), "its own pipeline only"));
  // The drain after step 6 is in both runs, as a checkpoint is due there.
  (void)run.train(true, {"train_steps=9"});
  auto metrics = run.metrics();
  std::erase_if(metrics, [](const MetricsRecord& r) { return r.validation && r.step == 6; });
  check_same(whole.metrics(), metrics);
  check_same_files(whole.checkpoint(9), run.checkpoint(9));
}

TEST_CASE("a run with replicas resumes to the bit, and the report has every rank", "[trainer]") {
  Json config = tiny();
  const char* schedule = GENERATE("1f1b", "pipedream");
  config["pipeline"] = {{"schedule", schedule}, {"cuts", {2}}, {"widths", GENERATE(Json{2, 1}, Json{1, 2})}};
  config["gradient_norm"] = false;
  config["train_batch_size"] = 64;
  config["train_micro_batch_size_per_gpu"] = 8;
  config["data"]["samples"] = 192;
  const Run whole(config);
  const TrainResult result = whole.train().result;
  CHECK(result.outcome.summary.peak.size() == 3);
  const RunReport report = make_report(read_run(whole.dir()));
  CHECK(report.stage_rows.size() == 3);
  CHECK(std::all_of(report.stage_rows.begin(), report.stage_rows.end(),
                    [](const StageRow& row) { return row.forward.measured > Seconds{}; }));
  config["train_steps"] = 6;
  const Run run(config);
  (void)run.train();
  if (std::string(schedule) == "pipedream") {
    CHECK(says(run.complaint(true, {"train_steps=9", "pipeline.widths=[1,1]"}), "its own pipeline only"));
  }
  (void)run.train(true, {"train_steps=9"});
  auto metrics = run.metrics();
  std::erase_if(metrics, [](const MetricsRecord& r) { return r.validation && r.step == 6; });
  check_same(whole.metrics(), metrics);
  check_same_files(whole.checkpoint(9), run.checkpoint(9));
}

TEST_CASE("the report names the stage that is slower than the plan has it, and no number changes",
          "[trainer]") {
  Json config = tiny();
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

TEST_CASE("a signal stops a run behind a checkpoint, and the rest is as if it had not been", "[trainer]") {
  Json config = tiny();
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

TEST_CASE("an asynchronous run is stopped by a signal at its next drain point", "[trainer]") {
  Json config = tiny();
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

TEST_CASE("a resume of a run that is over changes nothing", "[trainer]") {
  const Run run(tiny());
  (void)run.train();
  const RunPaths paths{run.dir()};
  const auto files = [&] {
    std::string all;
    for (const std::string& path : {paths.timeline(), paths.summary(), paths.metrics(), paths.config()}) {
      all += test::read_text_file(path);
    }
    return all;
  };
  const std::string before = files();
  const Ran again = run.train(true);
  CHECK(again.result.over);
  CHECK_FALSE(again.result.trained);
  CHECK(files() == before);
}

TEST_CASE("a signal during the last step does not stop a run that is over with it", "[trainer]") {
  Json config = tiny();
  config["data"]["validation_samples"] = 0;
  const Run run(config);
  const TrainResult result = run.stopped_at("step  9/9");
  CHECK(result.outcome.stopped_by == 0);
  CHECK(result.outcome.steps == 9);
}

TEST_CASE("a signal during a save stops the run behind that save", "[trainer]") {
  Json config = tiny();
  config["model"]["hidden"] = std::vector<int>(60, 8);  // many files, so that a save takes a while
  config["train_steps"] = 30;
  const Run run(config);
  fs::create_directories(run.dir() + "/checkpoints");
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

TEST_CASE("a signal during a validation stops the run behind it", "[trainer]") {
  Json config = tiny();
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

TEST_CASE("a validation that a signal left owing is made up for, and the step times stay", "[trainer]") {
  const Run run(tiny());
  const TrainResult stopped = run.stopped_at("step  9/9");
  CHECK(stopped.outcome.stopped_by == SIGTERM);  // the last validation is still to come
  const RunPaths paths{run.dir()};
  const std::string timeline = test::read_text_file(paths.timeline());
  const RunSummary resumed = run.train(true).result.outcome.summary;
  CHECK(resumed.last_validation->step == 9);
  CHECK(resumed.step.median.value == Approx(stopped.outcome.summary.step.median.value));
  CHECK(test::read_text_file(paths.timeline()) == timeline);
}

TEST_CASE("a run whose loss is no number any more stops before it saves that", "[trainer]") {
  Json config = tiny();
  config["optimizer"] = {{"type", "SGD"}, {"params", {{"lr", 1e30}}}};
  config["checkpoint"] = {{"every_steps", 1}, {"keep", 1}};
  const Run run(config);
  CHECK(says(run.complaint(false), "is not finite"));
  for (const MetricsRecord& record : run.metrics()) CHECK(std::isfinite(record.loss));
  const std::string newest = newest_checkpoint(RunPaths{run.dir()}.checkpoints());
  CHECK(read_manifest(newest).step == run.metrics().back().step);
}

TEST_CASE("a resumed run has the threads it had, whatever its stages", "[trainer]") {
  Json config = tiny();
  config["threads_per_rank"] = 3;
  config["train_steps"] = 3;
  const Run run(config);
  (void)run.train();
  (void)run.train(true, {"train_steps=4", "threads_per_rank=0", "pipeline.cuts=[1,3]"});
  CHECK(read_run_config(RunPaths{run.dir()}.config()).threads_per_rank == 3);
}

TEST_CASE("measured memory is never more than was proved, and close to it", "[trainer]") {
  // Wide layers, few samples: gradients and their norm are what memory goes to.
  Json config = tiny();
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

TEST_CASE("--resume of an empty run directory starts fresh", "[trainer]") {
  Json config = tiny();
  config["train_steps"] = 1;
  const Run run(config);
  CHECK(run.train(true).result.outcome.steps == 1);
  CHECK(says(run.complaint(false), "--resume"));
}

TEST_CASE("a resume that would not be the same run is refused, naming the key", "[trainer]") {
  Json config = tiny();
  config["train_steps"] = 1;
  const Run run(config);
  (void)run.train();
  CHECK(says(run.complaint(true, {"train_steps=2", "optimizer.params.lr=0.5"}), "/optimizer/params/lr"));
  CHECK(says(run.complaint(true, {"train_steps=2", "data.seed=9"}), "/data/seed"));
  CHECK(says(run.complaint(true, {"train_steps=2", "model.hidden=[16,13]"}), "/model/hidden"));
}

TEST_CASE("a longer run is another one where the learning rate follows from its length", "[trainer]") {
  Json config = tiny();
  config["scheduler"] = {{"type", "WarmupCosineLR"}, {"params", {{"warmup_num_steps", 2}}}};
  const Run run(config);
  (void)run.train();
  CHECK(says(run.complaint(true, {"train_steps=12"}), "/scheduler/params/total_num_steps: 9 there, 12"));
  CHECK(run.train(true, {"train_steps=12", "scheduler.params.total_num_steps=9"}).result.outcome.steps == 12);
}

TEST_CASE("a broken checkpoint is refused by the name of the file", "[trainer]") {
  Json config = tiny();
  config["train_steps"] = 1;
  const Run run(config);
  (void)run.train();
  const std::string folder = run.checkpoint(1);
  const std::string file = folder + "/" + read_manifest(folder).files.front().name;
  const std::string good = test::read_text_file(file);
  SECTION("one bit") {
    std::string bad = good;
    bad[bad.size() - 3] = static_cast<char>(bad[bad.size() - 3] ^ 1);
    write_file_atomically(file, bad);
  }
  SECTION("cut short") { write_file_atomically(file, good.substr(0, good.size() / 2)); }
  SECTION("gone") { fs::remove(file); }
  CHECK(says(run.complaint(true, {"train_steps=2"}), file));
  CHECK(says(test::read_text_file(run.dir() + "/exit.json"), "loading"));
}

TEST_CASE("a checkpoint without its complete marker does not count", "[trainer]") {
  Json config = tiny();
  config["train_steps"] = 6;
  const Run run(config);
  (void)run.train();
  fs::remove(run.checkpoint(6) + "/complete");
  CHECK(newest_checkpoint(RunPaths{run.dir()}.checkpoints()) == run.checkpoint(3));
  CHECK(run.train(true).result.outcome.steps == 6);
}

TEST_CASE("a run without a checkpoint begins again, and what it had written stays", "[trainer]") {
  Json config = tiny();
  config["train_steps"] = 3;
  const Run run(config);
  (void)run.train();
  const std::string before = test::read_text_file(run.dir() + "/metrics.jsonl");
  fs::remove_all(run.checkpoint(3));
  CHECK(run.train(true).result.outcome.steps == 3);
  CHECK(test::read_text_file(run.dir() + "/metrics.earlier-1.jsonl") == before);
  fs::remove_all(run.checkpoint(3));
  (void)run.train(true);
  CHECK(fs::exists(run.dir() + "/metrics.earlier-2.jsonl"));
  CHECK(run.metrics().size() == 4);  // three steps and a validation
}

TEST_CASE("layers of any name are saved and loaded", "[trainer]") {
  std::string chinese;
  for (int i = 0; i < 40; ++i) chinese += "\xe5\xb1\x82";
  Json config = tiny();
  config["model"] = Json::parse(R"({"family": "sequential", "layers": [
    {"type": "linear", "features": 6}, {"type": "relu"}, {"type": "linear", "features": 4}]})");
  config["model"]["layers"][0]["name"] = chinese;
  config["model"]["layers"][2]["name"] = std::string(300, 'x');
  config["train_steps"] = 1;
  const Run run(config);
  (void)run.train();
  CHECK(run.train(true, {"train_steps=2"}).result.outcome.steps == 2);
}

TEST_CASE("saving is tried before the first step", "[trainer]") {
  const Run run(tiny());
  SECTION("a place that cannot be written") {
    // Nobody can make a folder in a file.
    fs::create_directories(run.dir());
    std::ofstream(run.dir() + "/checkpoints") << "";
    CHECK(says(run.complaint(true), "/checkpoints: cannot be read: Not a directory"));
  }
  SECTION("nothing is left of it") {
    (void)run.train();
    for (const auto& entry : fs::directory_iterator(run.dir() + "/checkpoints")) {
      CHECK(says(entry.path().filename().string(), "step-"));
    }
  }
}

TEST_CASE("the optimizer's state must be there whole, and nothing else", "[trainer]") {
  Json config = tiny();
  config["train_steps"] = 1;
  const Run run(config);
  (void)run.train();
  const std::string folder = run.checkpoint(1);
  const std::string name = read_manifest(folder).files.front().name;
  const SafetensorsFile good = read_safetensors(folder + "/" + name);
  std::map<std::string, at::Tensor> tensors = good.tensors;
  std::map<std::string, std::string> metadata = good.metadata;
  std::string expected;
  SECTION("a missing one would begin at zero") {
    std::erase_if(tensors, [](const auto& entry) { return says(entry.first, "exp_avg_sq"); });
    expected = "has no tensor \"optimizer/";
  }
  SECTION("one that is not this optimizer's") {
    tensors["optimizer/weight/momentum_buffer"] = tensors.begin()->second;
    expected = "is none of this optimizer's";
  }
  SECTION("a number of steps beyond every number") {
    metadata["optimizer_steps"] = "99999999999999999999";
    expected = "expected a number of steps, found \"99999999999999999999\"";
  }
  write_safetensors(folder + "/" + name, {tensors.begin(), tensors.end()}, metadata);
  Json manifest = json::parse_file(folder + "/manifest.json");
  for (Json& file : manifest["files"]) {
    const std::string bytes = test::read_text_file(folder + "/" + file["name"].get<std::string>());
    file["bytes"] = bytes.size();
    file["hash"] = fingerprint(bytes);
  }
  write_json_file(folder + "/manifest.json", manifest);
  CHECK(says(run.complaint(true, {"train_steps=2"}), expected));
}

TEST_CASE("a manifest with impossible threads is refused", "[trainer]") {
  Json config = tiny();
  config["train_steps"] = 1;
  const Run run(config);
  (void)run.train();
  Json manifest = json::parse_file(run.checkpoint(1) + "/manifest.json");
  manifest["threads_per_rank"] = 100000;
  write_json_file(run.checkpoint(1) + "/manifest.json", manifest);
  CHECK(says(run.complaint(true, {"train_steps=2"}),
             "/threads_per_rank: expected at least 1 and at most 1024"));
}

TEST_CASE("weights start from another run's checkpoint", "[trainer]") {
  Json config = tiny();
  config["train_steps"] = 2;
  config["checkpoint"] = {{"at_start", true}, {"keep", 0}};
  const Run first(config);
  (void)first.train();
  REQUIRE(fs::exists(first.checkpoint(0) + "/complete"));
  config["initial_checkpoint"] = first.checkpoint(2);
  config["seed"] = 77;
  const Run second(config);
  (void)second.train();
  const std::string file = read_manifest(second.checkpoint(0)).files.front().name;
  CHECK(read_manifest(second.checkpoint(0)).step == 0);
  // The optimizer's state is not taken, so only the weights agree: compare through a third run.
  config["initial_checkpoint"] = second.checkpoint(0);
  const Run third(config);
  (void)third.train();
  check_same_files(second.checkpoint(0), third.checkpoint(0));
  check_same(second.metrics(), third.metrics());
}

TEST_CASE("a failing rank ends the run with its own error, in exit.json too", "[trainer]") {
  Json config = tiny();
  const Run run(config);
  // A folder where rank 1 wants its log.
  fs::create_directories(run.dir() + "/logs/rank-1.log");
  const std::string what = run.complaint(true);
  CHECK(says(what, "rank-1.log"));
  const Json exit = json::parse_file(run.dir() + "/exit.json");
  CHECK(exit["rank"] == 1);
  CHECK(exit["code"] == 2);
}

TEST_CASE("a dry run proves and shows, and writes nothing", "[trainer]") {
  const Run run(tiny());
  const ScratchFolder folder;
  Json config = tiny();
  config["run_dir"] = run.dir();
  TrainRequest request;
  request.config = folder.write("run.json", config.dump());
  request.dry_run = true;
  std::string printed;
  TrainOutput output{[&](const std::string& text) { printed += text; }, [](const std::string&) {}, [] {}};
  const TrainResult result = stagecraft::train(request, output);
  CHECK_FALSE(result.trained);
  CHECK(says(printed, "program shapes proved"));
  CHECK(result.effective_config["pipeline"]["stages"] == 2);
  CHECK_FALSE(fs::exists(run.dir()));
}
