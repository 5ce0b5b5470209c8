// Numbers that are not finite, planted into whole runs: they reach no checkpoint, the run says where they
// were and how to go on, and what it says works.

#include "base/files.h"
#include "base/json.h"
#include "engine/records/report/report.h"
#include "engine/run/resolve/model_plan.h"
#include "engine/run/save/checkpoint.h"
#include "engine/run/save/checkpoint_folder.h"
#include "engine/run/save/finite_state.h"
#include "engine/run/start/prepare.h"
#include "engine/run/start/train.h"
#include "engine/run/train/trainer.h"
#include "models/tensors/safetensors.h"
#include "models/tensors/safetensors_writer.h"
#include "schedules/generators/registry.h"
#include "schedules/generators/schedule.h"
#include "test/support/catch.h"
#include "test/support/command.h"
#include "test/support/planted_layer.h"
#include "test/support/ranks.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <vector>

using namespace stagecraft;
using namespace stagecraft::test;
namespace fs = std::filesystem;

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr int kSteps = 6;

/// 96 samples in batches of 32: three steps per epoch.
Json tiny(const std::string& run_dir) {
  Json json = Json::parse(R"({
    "model": {"family": "mlp", "hidden": [16, 12]},
    "data": {"type": "synthetic", "samples": 96, "validation_samples": 16, "shape": [8], "classes": 4},
    "loss": {"type": "cross_entropy"},
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01}},
    "train_batch_size": 32,
    "train_micro_batch_size_per_gpu": 8,
    "train_steps": 6,
    "threads_per_rank": 1,
    "checkpoint": {"every_steps": 1, "keep": 0},
    "validation": {"every_steps": 2},
    "comms": {"timeout_s": 60}
  })");
  json["run_dir"] = run_dir;
  return json;
}

/// A data set whose validation inputs are NaN, or cannot be read.
class BadValidation final : public Dataset {
 public:
  BadValidation(std::unique_ptr<Dataset> data, bool unreadable)
      : data_(std::move(data)), unreadable_(unreadable) {}
  std::int64_t size(Split split) const override { return data_->size(split); }
  SampleSpec sample() const override { return data_->sample(); }
  at::Tensor inputs(Split split, const std::vector<std::int64_t>& indices) const override {
    const at::Tensor inputs = data_->inputs(split, indices);
    if (split == Split::train) return inputs;
    if (unreadable_) throw InputError("data/valid: cannot be read: Input/output error");
    return at::full_like(inputs, kNan);
  }
  at::Tensor targets(Split split, const std::vector<std::int64_t>& indices) const override {
    return data_->targets(split, indices);
  }
  std::string fingerprint() const override { return data_->fingerprint(); }
  std::string summary() const override { return data_->summary(); }

 private:
  std::unique_ptr<Dataset> data_;
  bool unreadable_;
};

struct PlantedRun {
  Json config;
  std::string schedule = "1f1b";
  std::vector<Planted> planted{};
  int planted_at = 2;
  bool bad_validation = false;
  bool unreadable_validation = false;

  /// Of a run that goes on from the newest checkpoint, if there is one.
  [[nodiscard]] std::unique_ptr<RunSetup> setup() const {
    auto read = json::read<RunConfig>(config, {"run.json", ""});
    check_schedule(read, schedule, "run.json");
    TrainingInputs inputs = open_training_inputs(read, "run.json");
    plant(inputs.model, planted_at, planted);
    inputs.optimizer = std::make_shared<const ModelOptimizer>(read.optimizer, inputs.model,
                                                              InputPlace{"run.json", "/optimizer"});
    if (bad_validation || unreadable_validation) {
      inputs.data = std::make_unique<BadValidation>(std::move(inputs.data), unreadable_validation);
    }
    const auto layers = static_cast<int>(inputs.model.layers.size());
    Plan plan;
    plan.stages = {{0, 2, {Rank{0}}}, {2, layers, {Rank{1}}}};
    plan.schedule.name = schedule;
    plan.micro_batches = read.micro_batches();
    plan.micro_batch_size = read.micro_batch_size;
    follow_gradient_norm(read, plan);
    StartPoint start;
    start.checkpoint = newest();
    if (!start.checkpoint.empty()) {
      const Manifest manifest = read_manifest(start.checkpoint);
      start.step = manifest.step;
      start.validation_owed = manifest.validation_owed;
    }
    return std::make_unique<RunSetup>(ResolvedRun{std::move(read), std::move(plan), start},
                                      std::move(inputs));
  }

  /// Returns what the run's ranks ended with: "", or the message of one that did not only hear of another's.
  [[nodiscard]] std::string run(TrainOutcome* outcome = nullptr) const {
    const std::unique_ptr<RunSetup> made = setup();
    const RunDirectory directory(dir(), /*resume=*/true);
    const RunPaths& paths = directory.paths();
    write_run_files(paths, *made);
    std::array<std::string, 2> complaints;
    std::array<TrainOutcome, 2> outcomes;
    try {
      run_ranks(2, {.timeout = Seconds{60}}, [&](Transport& transport) {
        RankPhase doing;
        try {
          outcomes[transport.rank().index()] =
              train_rank(*made, paths, transport, at::kCPU, Screen{}, doing,
                         [](const std::string&, const std::exception_ptr&) {});
        } catch (const PeerError&) {
          throw;
        } catch (const std::exception& error) {
          complaints[transport.rank().index()] = error.what();
          throw;
        }
      });
    } catch (const std::exception&) {  // NOLINT: it is in `complaints`
    }
    if (outcome != nullptr) *outcome = std::move(outcomes.front());
    return complaints[0].empty() ? complaints[1] : complaints[0];
  }

  [[nodiscard]] std::string dir() const { return config.at("run_dir").get<std::string>(); }
  [[nodiscard]] std::string newest() const { return newest_checkpoint(RunPaths{dir()}.checkpoints()); }
  [[nodiscard]] std::int64_t newest_step() const {
    return newest().empty() ? -1 : read_manifest(newest()).step;
  }
};

/// Files of all checkpoints in a run directory that have a number that is not finite.
std::vector<std::string> spoiled_files(const std::string& run_dir) {
  std::vector<std::string> spoiled;
  for (const auto& entry : fs::recursive_directory_iterator(RunPaths{run_dir}.checkpoints())) {
    if (entry.path().extension() != ".safetensors") continue;
    for (const auto& [name, tensor] : read_safetensors(entry.path()).tensors) {
      if (!at::isfinite(tensor).all().item<bool>()) spoiled.push_back(entry.path());
    }
  }
  return spoiled;
}

}  // namespace

TEST_CASE("a gradient that is not finite stops the run before its step, and the run goes on as it said",
          "[safe_numbers]") {
  for (const char* schedule : {"1f1b", "fill_drain", "pipedream", "2bw"}) {
    const bool synchronous = find_schedule(schedule).synchronous;
    for (const bool norm : synchronous ? std::vector{true, false} : std::vector{false}) {
      for (int step = 0; step < kSteps; ++step) {
        const auto where = static_cast<Planted::Where>(step % 3);
        INFO(schedule << " norm " << norm << " step " << step);
        const ScratchFolder folder;
        PlantedRun run{.config = tiny(folder.path("run")), .schedule = schedule};
        run.config["gradient_norm"] = norm;
        run.planted = {{step, where, step % 2 == 0 ? kNan : kInf}};
        const std::string said = run.run();
        CHECK(says(said, fmt::format("step {}: the gradient of ", step + 1)));
        CHECK(run.newest_step() == (step == 0 ? -1 : step));
        if (step > 0) CHECK(says(said, run.newest() + " has the last good state"));
        if (step == 0) CHECK(says(said, "There is no checkpoint yet"));
        CHECK(spoiled_files(run.dir()).empty());

        // --resume --set on_overflow=skip
        run.config["on_overflow"] = "skip";
        if (synchronous && !norm) {
          if (step > 0) CHECK(says(said, "--set gradient_norm=true"));
          CHECK_THROWS_WITH(run.run(), Catch::Matchers::ContainsSubstring("/on_overflow"));
          run.config["gradient_norm"] = true;
        }
        TrainOutcome outcome;
        CHECK(run.run(&outcome) == "");
        CHECK(outcome.steps == kSteps);
        CHECK(outcome.summary.skipped_steps == 1);
        CHECK(run.newest_step() == kSteps);
        CHECK(spoiled_files(run.dir()).empty());
        const std::vector<MetricsRecord> metrics = read_metrics(RunPaths{run.dir()}.metrics());
        const auto skipped = std::count_if(metrics.begin(), metrics.end(), [&](const MetricsRecord& record) {
          return record.skipped && record.step == step + 1;
        });
        CHECK(skipped == (synchronous || where != Planted::Where::weight_gradient ? 1 : 0));
        CHECK(says(test::read_text_file(RunPaths{run.dir()}.summary()), "\"skipped_steps\": 1"));
      }
    }
  }
}

TEST_CASE("a resumed run agrees on the norm from then on, if it is asked to", "[safe_numbers]") {
  const ScratchFolder folder;
  Json config = tiny(folder.path("run"));
  config["gradient_norm"] = false;
  config["train_steps"] = 2;
  config["profiler"] = {{"repeats", 2}, {"warmup_ms", 0}};
  config["pipeline"] = {{"schedule", "1f1b"}, {"cuts", {2}}};
  TrainRequest request;
  request.config = folder.write("run.json", config.dump());
  const TrainOutput quiet{nullptr, [](const std::string&) {}, nullptr};
  (void)train(request, quiet);
  request.resume = true;
  request.overrides = {"train_steps=4", "gradient_norm=true", "on_overflow=skip"};
  (void)train(request, quiet);
  for (const MetricsRecord& record : read_metrics(RunPaths{folder.path("run")}.metrics())) {
    if (!record.validation) CHECK(record.gradient_norm.has_value() == (record.step > 2));
  }
}

TEST_CASE("a skipped run resumes to the bit", "[safe_numbers]") {
  const char* schedule = GENERATE("1f1b", "pipedream");
  const ScratchFolder folder;
  PlantedRun whole{.config = tiny(folder.path("whole")), .schedule = schedule};
  whole.config["on_overflow"] = "skip";
  whole.config["gradient_norm"] = schedule[0] == '1';
  whole.planted = {{1, Planted::Where::output, kNan}, {4, Planted::Where::weight_gradient, kInf}};
  REQUIRE(whole.run() == "");
  PlantedRun half = whole;
  half.config["run_dir"] = folder.path("half");
  half.config["train_steps"] = 3;
  REQUIRE(half.run() == "");
  half.config["train_steps"] = kSteps;
  REQUIRE(half.run() == "");
  for (const CheckpointFile& file : read_manifest(whole.newest()).files) {
    INFO(file.name);
    const bool same = test::read_text_file(whole.newest() + "/" + file.name) ==
                      test::read_text_file(half.newest() + "/" + file.name);
    CHECK(same);
  }
}

TEST_CASE("a step that itself makes what is not finite is not saved", "[safe_numbers]") {
  // Its square has no place in float32: the gradient is finite, and so is the norm, but not the second
  // moment.
  for (const char* schedule : {"1f1b", "pipedream"}) {
    const ScratchFolder folder;
    PlantedRun run{.config = tiny(folder.path("run")), .schedule = schedule};
    run.config["gradient_norm"] = false;
    run.planted = {{2, Planted::Where::weight_gradient, 1e30}};
    const std::string said = run.run();
    INFO(said);
    CHECK(says(said, "step 3: after it exp_avg_sq of bias in layer planted (stage 1) is not finite"));
    CHECK_FALSE(says(said, "on_overflow=skip"));
    CHECK(run.newest_step() == 2);
    CHECK(spoiled_files(run.dir()).empty());
  }
}

TEST_CASE("a run that ends by a number that is not finite names the sample that may be why",
          "[safe_numbers]") {
  const ScratchFolder folder;
  for (const auto& [name, number] : {std::pair{"inputs", kNan}, {"inputs", kInf}, {"targets", kNan}}) {
    std::map<std::string, at::Tensor> arrays{{"inputs", at::ones({24, 8})}, {"targets", at::ones({24, 4})}};
    arrays[name][17][2] = number;
    write_safetensors(folder.path("data.safetensors"), {arrays.begin(), arrays.end()});
    Json config = tiny(folder.path("run"));
    // A captured model may know what to do with such numbers.
    config["model"] = {{"family", "captured"}, {"path", STAGECRAFT_CAPTURED_MODELS "/tiny"}};
    config["data"] = {{"type", "arrays"}, {"path", folder.path("data.safetensors")}};
    config["loss"] = {{"type", "mse"}};
    config["train_batch_size"] = 8;
    config["train_micro_batch_size_per_gpu"] = 4;
    config.erase("validation");
    config["pipeline"] = {{"stages", 1}};
    TrainRequest request;
    request.config = folder.write("run.json", config.dump());
    request.dry_run = true;
    const auto prepare_run = [&] {
      return prepare(request, read_run_config(request.config, {}), std::nullopt, [](const RunPaths&) {});
    };
    if (std::string(name) == "targets") {  // which a built-in loss reads
      CHECK_THROWS_WITH(prepare_run(),
                        Catch::Matchers::ContainsSubstring("sample 17 has nan in its targets"));
      continue;
    }
    const auto run = prepare_run();
    int named = 0;
    for (int step = 0; step < 3; ++step) {  // an epoch
      const std::string words = how_to_go_on(NotFiniteError(step, "the loss is nan", true), *run.setup, "");
      INFO(words);
      CHECK(says(words, "There is no checkpoint yet"));
      if (!says(words, "Sample ")) continue;
      ++named;
      CHECK(words.starts_with(
          fmt::format("Sample 17 of {} has a number in its {} that is {}, which may be why. ",
                      folder.path("data.safetensors"), name, std::isnan(number) ? "nan" : "inf")));
    }
    CHECK(named == 1);
  }
}

TEST_CASE("an error between a step and its validation leaves the validation to the resumed run",
          "[safe_numbers]") {
  for (int step = 1; step <= kSteps; ++step) {
    const ScratchFolder folder;
    Json config = tiny(folder.path("run"));
    config["pipeline"] = {{"stages", 1}};
    config["checkpoint"] = {{"every_steps", 0}};
    config["steps_per_print"] = 1;
    TrainRequest request;
    request.config = folder.write("run.json", config.dump());
    TrainOutput said;
    said.print = [&](const std::string& text) {
      if (says(text, fmt::format("step  {}/{}", step, kSteps))) throw InputError("the disk is full");
    };
    CHECK_THROWS_WITH(train(request, said), Catch::Matchers::ContainsSubstring("the disk is full"));
    const std::string newest = newest_checkpoint(RunPaths{folder.path("run")}.checkpoints());
    INFO("step " << step << ": " << newest);
    REQUIRE_FALSE(newest.empty());
    CHECK(read_manifest(newest).step == step);
    CHECK(read_manifest(newest).validation_owed == (step % 2 == 0));  // validation.every_steps
  }
}

TEST_CASE("weights start from another run's last good state, with a lower learning rate", "[safe_numbers]") {
  const ScratchFolder folder;
  PlantedRun run{.config = tiny(folder.path("run"))};
  run.planted = {{3, Planted::Where::output, kNan}};
  const std::string said = run.run();
  REQUIRE(says(said, "--set initial_checkpoint=" + run.newest()));
  PlantedRun other{.config = tiny(folder.path("other"))};
  other.config["initial_checkpoint"] = run.newest();
  other.config["optimizer"]["params"]["lr"] = 0.001;
  CHECK(other.run() == "");
  CHECK(other.newest_step() == kSteps);
}

TEST_CASE("nothing goes on from weights that are not finite", "[safe_numbers]") {
  const ScratchFolder folder;
  PlantedRun run{.config = tiny(folder.path("run"))};
  REQUIRE(run.run() == "");
  // As another framework's: without a manifest nobody holds the files against their hashes.
  const std::string weights = folder.path("weights");
  fs::create_directory(weights);
  for (const CheckpointFile& file : read_manifest(run.newest()).files) {
    SafetensorsFile read = read_safetensors(run.newest() + "/" + file.name);
    if (file.name == layer_file("planted")) read.tensors.at("parameter/bias")[3] = kNan;
    write_safetensors(weights + "/" + file.name, {read.tensors.begin(), read.tensors.end()}, read.metadata);
  }
  PlantedRun other{.config = tiny(folder.path("other"))};
  other.config["initial_checkpoint"] = weights;
  const std::string said = other.run();
  INFO(said);
  CHECK(says(said, weights));
  CHECK(says(said, "bias in layer planted (stage 1) is not finite"));
  CHECK(other.newest_step() == -1);
}

TEST_CASE("a validation loss that is not finite is told, and its run can be read", "[safe_numbers]") {
  const ScratchFolder folder;
  PlantedRun run{.config = tiny(folder.path("run"))};
  run.bad_validation = true;
  TrainOutcome outcome;
  CHECK(run.run(&outcome) == "");
  CHECK(std::isnan(outcome.summary.last_validation->loss));
  const RunFiles files = read_run(run.dir());
  CHECK(std::isnan(files.summary.last_validation->loss));
  CHECK(files.summary.last_step->loss > 0);
  CHECK(std::count_if(files.metrics.begin(), files.metrics.end(),
                      [](const MetricsRecord& record) { return std::isnan(record.loss); }) == 3);
  CHECK(make_report(files).steps == kSteps);
}

TEST_CASE("a loss alone that is not finite stops a run that does not skip", "[safe_numbers]") {
  const ScratchFolder folder;
  PlantedRun run{.config = tiny(folder.path("run"))};
  const std::string metrics = folder.path("metrics.jsonl");
  StepReport report;
  report.step = 4;
  report.loss = -kNan;
  const std::unique_ptr<RunSetup> stops = run.setup();
  RunReporter reporter(*stops, metrics, Screen{});
  CHECK_THROWS_WITH(reporter.step(report), Catch::Matchers::ContainsSubstring("step 5: the loss is nan"));
  CHECK(read_metrics(metrics).empty());

  run.config["on_overflow"] = "skip";
  const std::unique_ptr<RunSetup> skips = run.setup();
  RunReporter other(*skips, metrics, Screen{});
  CHECK_NOTHROW(other.step(report));
  CHECK(read_metrics(metrics).size() == 1);
}

namespace {

/// Weights, optimizer state and metrics of two runs that have ended.
void check_same_runs(const PlantedRun& a, const PlantedRun& b) {
  CHECK(a.newest_step() == b.newest_step());
  for (const CheckpointFile& file : read_manifest(a.newest()).files) {
    INFO(file.name);
    const bool same = test::read_text_file(a.newest() + "/" + file.name) ==
                      test::read_text_file(b.newest() + "/" + file.name);
    CHECK(same);
  }
  const auto losses = [](const PlantedRun& run) {
    std::vector<std::string> all;
    for (const MetricsRecord& record : read_metrics(RunPaths{run.dir()}.metrics())) {
      all.push_back(fmt::format("{} {} {:a}", record.step, record.validation, record.loss));
    }
    return all;
  };
  CHECK(losses(a) == losses(b));
}

}  // namespace

TEST_CASE("a run that an error ends saves the state of the last whole step", "[safe_numbers]") {
  const char* schedule = GENERATE("1f1b", "fill_drain");
  const bool statistics = GENERATE(false, true);  // which forwards change
  const ScratchFolder folder;
  PlantedRun whole{.config = tiny(folder.path("whole")), .schedule = schedule};
  whole.config["checkpoint"] = {{"every_steps", 0}};
  if (statistics) {
    whole.config["model"] = Json::parse(R"({"family": "sequential", "layers": [
      {"type": "linear", "features": 12}, {"type": "batch_norm"}, {"type": "relu"}, {"type": "batch_norm"},
      {"type": "linear", "features": 4}]})");
  }
  REQUIRE(whole.run() == "");
  for (const int step : {0, 1, 4}) {
    INFO(schedule << " step " << step);
    PlantedRun run = whole;
    run.config["run_dir"] = folder.path("run" + std::to_string(step));
    run.planted = {{step, Planted::Where::failure, 0}};
    const std::string said = run.run();
    INFO(said);
    CHECK(says(said, "planted to fail"));
    CHECK(says(said, fmt::format("at step {}, action", step + 1)));  // as the log counts
    CHECK(run.newest_step() == (step == 0 ? -1 : step));
    CHECK(says(said, step == 0 ? std::string("No state was saved")
                               : fmt::format("The state of step {} was saved in {}", step, run.newest())));
    run.planted.clear();
    CHECK(run.run() == "");
    check_same_runs(run, whole);
  }
}

TEST_CASE("an error is told as it is, in the layer that nothing needs a gradient before, too",
          "[safe_numbers]") {
  const ScratchFolder folder;
  PlantedRun run{.config = tiny(folder.path("run")), .planted_at = 0};
  run.planted = {{1, Planted::Where::weight_failure, 0}};
  const std::string said = run.run();
  INFO(said);
  CHECK(says(said, "layer \"planted\" (planted), backward"));
  CHECK(says(said, "planted to fail"));
}

TEST_CASE("a validation that an error ends is owed by the state that was saved", "[safe_numbers]") {
  const ScratchFolder folder;
  PlantedRun whole{.config = tiny(folder.path("whole"))};
  whole.config["checkpoint"] = {{"every_steps", 0}};
  REQUIRE(whole.run() == "");
  PlantedRun run = whole;
  run.config["run_dir"] = folder.path("run");
  run.unreadable_validation = true;
  const std::string said = run.run();
  INFO(said);
  CHECK(says(said, "data/valid: cannot be read"));
  CHECK(run.newest_step() == 2);
  CHECK(read_manifest(run.newest()).validation_owed);
  run.unreadable_validation = false;
  CHECK(run.run() == "");
  check_same_runs(run, whole);
}

TEST_CASE("a gradient that is not finite leaves the state before it, unless that is not finite either",
          "[safe_numbers]") {
  const ScratchFolder folder;
  PlantedRun run{.config = tiny(folder.path("run"))};
  run.config["checkpoint"] = {{"every_steps", 2}, {"keep", 1}};
  run.planted = {{3, Planted::Where::output, kNan}};
  CHECK(says(run.run(), "step-00000003 has the last good state"));
  CHECK(run.newest_step() == 3);
  // What went wrong may have begun before.
  CHECK(fs::exists(RunPaths{run.dir()}.checkpoints() + "/step-00000002/manifest.json"));
  CHECK(spoiled_files(run.dir()).empty());

  PlantedRun spoils{.config = tiny(folder.path("spoils"))};
  spoils.config["checkpoint"] = {{"every_steps", 2}};
  spoils.config["gradient_norm"] = false;
  spoils.planted = {{2, Planted::Where::weight_gradient, 1e30}, {3, Planted::Where::failure, 0}};
  const std::string said = spoils.run();
  INFO(said);
  CHECK(says(said, "planted to fail"));
  CHECK(says(said, "after it exp_avg_sq of bias in layer planted (stage 1) is not finite"));
  CHECK(spoils.newest_step() == 2);
  CHECK(spoiled_files(spoils.dir()).empty());
}

TEST_CASE("an asynchronous run that an error ends says that only drained pipelines can be saved",
          "[safe_numbers]") {
  const ScratchFolder folder;
  PlantedRun run{.config = tiny(folder.path("run")), .schedule = "pipedream"};
  run.config["checkpoint"] = {{"every_steps", 0}};
  run.planted = {{5, Planted::Where::failure, 0}};
  const std::string said = run.run();
  INFO(said);
  CHECK(says(said, "planted to fail"));
  CHECK(says(said, "an asynchronous run can be saved only where its pipeline drains"));
}
