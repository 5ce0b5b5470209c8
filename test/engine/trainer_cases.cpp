#include "test/engine/trainer_cases.h"

#include "base/error.h"
#include "engine/run/save/checkpoint.h"
#include "test/support/catch.h"

#include <fmt/format.h>

#include <csignal>
#include <utility>

namespace stagecraft::test {

Json tiny_config() {
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

TrainRequest Run::request() const {
  TrainRequest request;
  request.config = folder_.write("run.json", config_.dump());
  return request;
}

Ran Run::train(bool resume, const std::vector<std::string>& overrides,
               const std::vector<std::string>& allowed) const {
  Ran ran;
  TrainRequest request = this->request();
  request.overrides = overrides;
  request.resume = resume;
  request.allowed_changes = allowed;
  TrainOutput output;
  output.print = [&](const std::string& text) { ran.printed += text; };
  output.note = [](const std::string&) {};
  ran.result = stagecraft::train(request, output);
  return ran;
}

std::string Run::complaint(bool resume, const std::vector<std::string>& overrides,
                           const std::vector<std::string>& allowed) const {
  try {
    (void)train(resume, overrides, allowed);
    return "";
  } catch (const InputError& error) {
    return error.what();
  }
}

TrainResult Run::stopped_at(const std::string& line) const {
  return looked_at(line, [] { std::raise(SIGTERM); });
}

TrainResult Run::looked_at(const std::string& line, const std::function<void()>& look) const {
  bool looked = false;
  TrainOutput output;
  output.print = [&](const std::string& text) {
    if (looked || !says(text, line)) return;
    looked = true;
    look();
  };
  output.note = [](const std::string&) {};
  return stagecraft::train(request(), output);
}

std::string Run::checkpoint(int step) const { return fmt::format("{}/checkpoints/step-{:08}", dir(), step); }

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
    const bool same = read_text_file(a + "/" + file.name) == read_text_file(b + "/" + file.name);
    CHECK(same);  // not the bytes themselves: nobody reads them in a log
  }
}

}  // namespace stagecraft::test
