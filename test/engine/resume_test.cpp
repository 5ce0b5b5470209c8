// A run that goes on from a checkpoint equals one that was never stopped, or is refused.

#include "base/json.h"
#include "engine/records/metrics/manifest.h"
#include "engine/records/metrics/metrics.h"
#include "engine/records/report/report.h"
#include "test/engine/trainer_cases.h"
#include "test/support/catch.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string>

namespace stagecraft::test {
namespace fs = std::filesystem;

TEST_CASE("a resumed run goes on to the bit, with other stages too", "[resume]") {
  const Run whole(tiny_config());
  (void)whole.train();
  const std::string other_stages =
      GENERATE(std::string("pipeline.cuts=[2]"), std::string("pipeline.cuts=[1,4]"),
               std::string(R"(pipeline={"schedule": "interleaved_1f1b", "cuts": [1, 3, 5]})"));
  INFO(other_stages);
  Json half = tiny_config();
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

TEST_CASE("what only the end of a run writes is written by a resume, where it is missing", "[resume]") {
  const Run run(tiny_config());
  const TrainOutcome ended = run.train().result.outcome;
  const RunPaths paths{run.dir()};
  const std::string summary = read_text_file(paths.summary()), timeline = read_text_file(paths.timeline());
  SECTION("nothing is") {
    CHECK(run.train(true).result.over);
    CHECK(read_text_file(paths.summary()) == summary);
    CHECK(read_text_file(paths.timeline()) == timeline);
  }
  SECTION("both are") {
    fs::remove(paths.summary());
    fs::remove(paths.timeline());
    CHECK(run.train(true).result.over);
    const RunFiles files = read_run(run.dir());
    CHECK(files.summary.restored);
    CHECK(files.summary.steps == 9);
    CHECK(files.summary.measured_steps == ended.summary.measured_steps);
    CHECK(files.summary.step.median.value == Approx(ended.summary.step.median.value).epsilon(0.01));
    CHECK(files.summary.last_step->loss == ended.summary.last_step->loss);
    CHECK(files.summary.last_validation->loss == ended.summary.last_validation->loss);
    CHECK((files.summary.proved_peak == ended.summary.proved_peak));
    const RunReport report = make_report(files);
    CHECK(report.step.measured.has_value());
    CHECK_FALSE(report.bubble);
    CHECK(says(report_text(report), "the end of the run was lost"));
  }
  SECTION("the timeline is") {
    fs::remove(paths.timeline());
    CHECK(run.train(true).result.over);
    CHECK(read_text_file(paths.summary()) == summary);
    CHECK(read_run(run.dir()).timeline.events.empty());
  }
  SECTION("they are, and the history too") {
    for (const std::string& path : {paths.summary(), paths.timeline()}) fs::remove(path);
    fs::resize_file(paths.metrics(), 0);
    CHECK(run.train(true).result.over);
    CHECK_FALSE(make_report(read_run(run.dir())).step.measured);
  }
}

TEST_CASE("a run that was killed has no figures of an earlier session, until it was resumed", "[resume]") {
  const Run run(tiny_config());
  const TrainResult stopped = run.stopped_at("step  9/9");  // the last validation is still to come
  REQUIRE(stopped.outcome.stopped_by != 0);
  const RunPaths paths{run.dir()};
  fs::remove(paths.summary());
  fs::remove(paths.timeline());
  const RunFiles killed = read_run(run.dir());
  CHECK_FALSE(killed.ended);
  CHECK(killed.summary.steps == 9);
  const RunReport report = make_report(killed);
  CHECK(report.step.measured.has_value());
  CHECK_FALSE(report.bubble);
  CHECK(says(report_text(report), "no steps that all ranks have written"));
  (void)run.train(true);
  const RunFiles files = read_run(run.dir());
  CHECK(files.summary.restored);
  CHECK(files.summary.last_validation->step == 9);
  CHECK(files.summary.stopped_by_signal == 0);
  CHECK(make_report(files).steps == 9);
}

TEST_CASE("a session that makes no step leaves the figures of the one before", "[resume]") {
  const Run run(tiny_config());
  (void)run.stopped_at("step  5/9");
  const RunPaths paths{run.dir()};
  const std::string timeline = read_text_file(paths.timeline());
  CHECK_FALSE(run.complaint(true, {"train_steps=2"}).empty());
  CHECK(read_text_file(paths.timeline()) == timeline);
  CHECK(read_run(run.dir()).summary.steps == 6);
}

TEST_CASE("runs in mixed precision resume to the bit, in the middle of a changing loss scale", "[resume]") {
  Json config = tiny_config();
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

TEST_CASE("state of every shape resumes to the bit, averaged weights and groups too", "[resume]") {
  Json config = tiny_config();
  config["model"]["hidden"] = {16, 12, 10};
  const Json one = {{"most_dimensions", 1}, {"weight_decay", 0}};
  config["optimizer"] = GENERATE_COPY(
      Json{{"type", "NAdam"}, {"params", {{"lr", 0.01}, {"betas", {0.99, 0.999}}}}, {"ema_decay", 0.9}},
      Json{{"type", "Lion"},
           {"params", {{"lr", 0.001}, {"weight_decay", 0.1}}},
           {"groups", Json::array({one})}},
      Json{{"type", "Adafactor"}, {"params", {{"lr", 0.05}}}},
      Json{{"type", "Muon"}, {"params", {{"lr", 0.02}}}, {"ema_decay", 0.5}},
      Json{{"type", "AdamW"}, {"staleness", {{"look_ahead", 1}, {"discount_steps", 8}}}});
  const bool asynchronous = GENERATE(false, true);
  if (asynchronous) {
    config["pipeline"] = {{"schedule", "pipedream"}, {"cuts", {2, 5}}, {"synchronous_steps", 2}};
    config["gradient_norm"] = false;
  }
  INFO(config["optimizer"].dump() << asynchronous);
  const Run whole(config);
  (void)whole.train();
  config["train_steps"] = 6;
  const Run run(config);
  (void)run.train();
  (void)run.train(true, {"train_steps=9", asynchronous ? "seed=3" : "pipeline.cuts=[1,4]"});
  auto metrics = run.metrics();
  std::erase_if(metrics, [](const MetricsRecord& r) { return r.validation && r.step == 6; });
  check_same(whole.metrics(), metrics);
  check_same_files(whole.checkpoint(9), run.checkpoint(9));
}

TEST_CASE("an asynchronous run resumes to the bit at a drain point, and only with its own stages",
          "[resume]") {
  Json config = tiny_config();
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

TEST_CASE("a run with replicas resumes to the bit, and the report has every rank", "[resume]") {
  Json config = tiny_config();
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

TEST_CASE("a resume of a run that is over changes nothing", "[resume]") {
  const Run run(tiny_config());
  (void)run.train();
  const RunPaths paths{run.dir()};
  const auto files = [&] {
    std::string all;
    for (const std::string& path : {paths.timeline(), paths.summary(), paths.metrics(), paths.config()}) {
      all += read_text_file(path);
    }
    return all;
  };
  const std::string before = files();
  const Ran again = run.train(true);
  CHECK(again.result.over);
  CHECK_FALSE(again.result.trained);
  CHECK(files() == before);
}

TEST_CASE("a resumed run has the threads it had, whatever its stages", "[resume]") {
  Json config = tiny_config();
  config["threads_per_rank"] = 3;
  config["train_steps"] = 3;
  const Run run(config);
  (void)run.train();
  (void)run.train(true, {"train_steps=4", "threads_per_rank=0", "pipeline.cuts=[1,3]"});
  CHECK(read_run_config(RunPaths{run.dir()}.config()).threads_per_rank == 3);
}

TEST_CASE("--resume of an empty run directory starts fresh", "[resume]") {
  Json config = tiny_config();
  config["train_steps"] = 1;
  const Run run(config);
  CHECK(run.train(true).result.outcome.steps == 1);
  CHECK(says(run.complaint(false), "--resume"));
}

TEST_CASE("a resume that would not be the same run is refused, naming the key", "[resume]") {
  Json config = tiny_config();
  config["train_steps"] = 1;
  const Run run(config);
  (void)run.train();
  CHECK(says(run.complaint(true, {"train_steps=2", "optimizer.params.lr=0.5"}), "/optimizer/params/lr"));
  CHECK(says(run.complaint(true, {"train_steps=2", "data.seed=9"}), "/data/seed"));
  CHECK(says(run.complaint(true, {"train_steps=2", "model.hidden=[16,13]"}), "/model/hidden"));
}

TEST_CASE("what a resume may change is said with each refusal, changed as allowed, and kept in manifests",
          "[resume]") {
  Json config = tiny_config();
  config["train_steps"] = 3;
  config["optimizer"] = {{"type", "SGD"}, {"params", {{"lr", 0.01}}}};
  const Run run(config);
  (void)run.train();
  const std::vector<std::string> slower{"train_steps=5", "optimizer.params.lr=0.5"};
  CHECK(says(run.complaint(true, slower), "--allow optimizer.params.lr"));
  CHECK(says(run.complaint(true, slower, {"scheduler"}), "--allow optimizer.params.lr"));
  CHECK(says(run.complaint(true, {"train_steps=5", "model.hidden=[16,13]"}, {"optimizer"}),
             "initial_checkpoint"));
  // All that differs is said at once.
  const std::vector<std::string> much{"train_steps=5", "optimizer.params.lr=0.5", "seed=8", "data.samples=64",
                                      "data.classes=3"};
  CHECK(says(run.complaint(true, much), "--allow data --allow optimizer.params.lr --allow seed goes on"));
  CHECK(says(run.complaint(true, much, {"data", "seed"}),
             "0.5 in this run; --allow optimizer.params.lr goes on"));
  CHECK(says(run.complaint(true, {"train_steps=5", "seed=8", "model.hidden=[16,13]"}),
             "no resume can change model.hidden.1: a new run with \"initial_checkpoint\""));
  CHECK(says(run.complaint(true, slower, {"model"}), "no resume can change this"));
  CHECK(says(run.complaint(true, slower, {"lr"}), "did you mean \"optimizer.params.lr\""));
  CHECK(says(run.complaint(true, slower, {"/optimizer/params/lr"}), "did you mean \"optimizer.params.lr\""));
  CHECK_FALSE(says(run.complaint(true, slower, {"optimizer.type"}), "it is"));
  CHECK(says(run.complaint(true, {"train_steps=5", "data.samples=64"}), "--allow data goes on"));
  // What the state is no state of is refused before anything is written.
  const std::string before = read_text_file(run.dir() + "/config.json");
  const std::string momentum = "optimizer.params.momentum=0.7";
  CHECK(says(run.complaint(true, {"train_steps=5", momentum}, {"optimizer.params"}), "keeps other tensors"));
  CHECK(read_text_file(run.dir() + "/config.json") == before);
  CHECK(says(run.complaint(true, slower, {"optimiser.params"}), "did you mean \"optimizer.params\""));
  // A key that nobody has allows nothing.
  CHECK(says(run.complaint(true, slower, {"optimizer.params.lrr"}),
             "--allow optimizer.params.lrr: neither this config nor the checkpoint has such a key; did you "
             "mean \"optimizer.params.lr\"?"));
  for (const char* key : {"optimizer.params.lr.x", "optimizer.groups.7", "optimizer.groups.x", "data.",
                          "scheduler.parms", "loss.tpye"})
    CHECK(says(run.complaint(true, slower, {key}), fmt::format("--allow {}: neither", key)));

  (void)run.train(true, slower, {"optimizer.params"});
  // The last record is the validation's.
  CHECK(std::ranges::any_of(run.metrics(), [](const MetricsRecord& r) { return r.learning_rate == 0.5; }));
  std::vector<ResumeChange> changes = read_manifest(run.checkpoint(5)).changes;
  REQUIRE(changes.size() == 1);
  CHECK(changes[0].step == 3);
  CHECK(changes[0].pointer == "/optimizer/params/lr");
  CHECK(changes[0].now == 0.5);

  // The new value is the run's from here on, and another batch's steps are counted as its own run's would be.
  CHECK(says(run.complaint(true, {"train_steps=7"}), "--allow optimizer.params.lr"));
  (void)run.train(true, {"train_steps=7", "optimizer.params.lr=0.5", "train_batch_size=16"},
                  {"train_batch_size"});
  changes = read_manifest(run.checkpoint(7)).changes;
  REQUIRE(changes.size() == 2);
  CHECK(changes[1].pointer == "/train_batch_size");
  CHECK(changes[1].before == 32);
}

TEST_CASE("a longer run is another one where the learning rate follows from its length", "[resume]") {
  Json config = tiny_config();
  config["scheduler"] = {{"type", "WarmupCosineLR"}, {"params", {{"warmup_num_steps", 2}}}};
  const Run run(config);
  (void)run.train();
  CHECK(says(run.complaint(true, {"train_steps=12"}), "/scheduler/params/total_num_steps: 9 there, 12"));
  CHECK(run.train(true, {"train_steps=12", "scheduler.params.total_num_steps=9"}).result.outcome.steps == 12);
}

TEST_CASE("a run without a checkpoint begins again, and what it had written stays", "[resume]") {
  Json config = tiny_config();
  config["train_steps"] = 3;
  const Run run(config);
  (void)run.train();
  const std::string before = read_text_file(run.dir() + "/metrics.jsonl");
  fs::remove_all(run.checkpoint(3));
  CHECK(run.train(true).result.outcome.steps == 3);
  CHECK(read_text_file(run.dir() + "/metrics.earlier-1.jsonl") == before);
  fs::remove_all(run.checkpoint(3));
  (void)run.train(true);
  CHECK(fs::exists(run.dir() + "/metrics.earlier-2.jsonl"));
  CHECK(run.metrics().size() == 4);  // three steps and a validation
}

}  // namespace stagecraft::test
