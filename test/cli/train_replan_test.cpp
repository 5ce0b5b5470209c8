// A run that takes another plan while it goes (replan.when): at a checkpoint, with the bits of a run left alone.

#include "base/json.h"
#include "test/cli/train_cases.h"
#include "test/support/catch.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace stagecraft::test {
namespace {

/// Four linear layers between which there is nothing to compute for some milliseconds, and a fifth.
Json sleepy_run(const ScratchFolder& folder, double milliseconds) {
  Json json = Json::parse(R"({
    "model": {"family": "sequential", "layers": []},
    "data": {"type": "synthetic", "samples": 256, "validation_samples": 0, "shape": [32], "classes": 4},
    "loss": {"type": "cross_entropy"},
    "train_batch_size": 16,
    "train_micro_batch_size_per_gpu": 4,
    "train_steps": 3,
    "threads_per_rank": 1,
    "steps_per_print": 0,
    "profiler": {"repeats": 2, "warmup_ms": 0},
    "pipeline": {"stages": 2},
    "checkpoint": {"every_steps": 1},
    "replan": {"when": 1.3},
    "log": {"timeline_steps": 2}
  })");
  Json& layers = json["model"]["layers"];
  for (int i = 0; i < 4; ++i) {
    layers.push_back({{"type", "linear"}, {"features", 16}});
    layers.push_back({{"type", "delay"}, {"forward_ms", milliseconds}, {"backward_input_ms", milliseconds}});
  }
  layers.push_back({{"type", "linear"}, {"features", 4}});
  json["run_dir"] = folder.path("run");
  return json;
}

/// As if the device behind the first delay were three times slower than the one that was measured.
void profile_wrongly(const std::string& run_dir) {
  Json profile = json::parse_file(run_dir + "/profile.json");
  Json& layers = profile["measurements"][0]["layers"];
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const bool delay = layers[i]["name"].get<std::string>().starts_with("delay");
    for (const char* half : {"forward", "backward_input", "backward_weight"}) {
      layers[i][half]["median_ms"] =
          delay && half != std::string("backward_weight") ? i < 2 ? 4 : 1.33 : 0.02;
    }
  }
  std::ofstream(run_dir + "/profile.json") << profile.dump();
}

struct Step {
  std::int64_t step;
  Json loss;
  bool operator==(const Step&) const = default;
};

std::vector<Step> steps_of(const std::string& run_dir) {
  std::vector<Step> steps;
  std::ifstream in(run_dir + "/metrics.jsonl");
  for (std::string line; std::getline(in, line);) {
    const Json record = Json::parse(line);
    steps.push_back({record.at("step").get<std::int64_t>(), record.at("loss")});
  }
  return steps;
}

/// First layers of the stages that the run went on with last.
std::vector<int> cuts_of(const std::string& run_dir) {
  std::vector<int> cuts;
  const Json plan = json::parse_file(run_dir + "/plan.json");
  for (const Json& stage : plan.at("stages")) cuts.push_back(stage.at("first_layer").get<int>());
  return cuts;
}

/// Begins a run, lets it think that its last layers are fast, and goes on: for as long as three looks at the ranks
/// take, and some steps more.
void replans(const std::string& launcher) {
  const ScratchFolder folder;
  const std::string dir = folder.path("run");
  const auto train = [&](const Json& config, const std::string& options) {
    return shell_line(folder, fmt::format("{} {} train {}{}", launcher, STAGECRAFT_COMMAND,
                                          folder.write("run.json", config.dump()), options));
  };
  Json config = sleepy_run(folder, 4);
  REQUIRE(train(config, "").code == 0);
  profile_wrongly(dir);
  std::filesystem::remove(dir + "/plan.json");
  config["train_steps"] = 450;
  config["checkpoint"]["every_steps"] = 10;
  const CommandResult result = train(config, " --resume");
  INFO(result.out << result.err);
  REQUIRE(result.code == 0);
  CHECK(says(result.out, "stage 1 computes "));
  CHECK(says(result.out, "shorter: it is taken at the next checkpoint"));
  CHECK(says(result.out, "is made with another plan."));
  CHECK(says(result.out, "Done: 450 steps"));
  const std::vector<int> cuts = cuts_of(dir);
  REQUIRE(cuts.size() == 2);
  CHECK(cuts[1] > 3);  // more than the first delay is on rank 0
  CHECK(std::filesystem::exists(dir + "/checkpoints/step-00000450"));

  config = sleepy_run(folder, 0);
  config["train_steps"] = 450;
  config["checkpoint"]["every_steps"] = 10;
  config["replan"] = Json::object();
  config["run_dir"] = folder.path("alone");
  REQUIRE(train(config, "").code == 0);
  const bool same = steps_of(dir) == steps_of(folder.path("alone"));
  CHECK(same);  // not the losses themselves: nobody reads them in a log
}

}  // namespace

TEST_CASE("a rank that is slow makes the run take another plan, to the same bits", "[train_replan]") {
  replans("");
}

TEST_CASE("the same of ranks that are processes", "[train_replan_mpi]") {
  if (!has_mpirun()) return;
  replans(fmt::format("env {} mpirun -np 2", kMpirunEnvironment));
}

TEST_CASE("a run that cannot take another plan says so at its start", "[train_replan]") {
  const ScratchFolder folder;
  const auto refused = [&](const Json& change) {
    Json config = sleepy_run(folder, 0);
    config.merge_patch(change);
    return shell_line(
        folder, fmt::format("{} train {}", STAGECRAFT_COMMAND, folder.write("run.json", config.dump())));
  };
  const auto check = [&](const Json& change, const std::string& why) {
    const CommandResult result = refused(change);
    INFO(result.err);
    CHECK(result.code == 2);
    CHECK(says(result.err, "run.json: /replan/when: "));
    CHECK(says(result.err, why));
  };
  check({{"pipeline", {{"cuts", {4}}}}}, "pipeline.cuts");
  check({{"checkpoint", {{"every_steps", 0}}}}, "set checkpoint.every_steps");
  check({{"log", {{"timeline_steps", 0}}}}, "log.timeline_steps");
  check({{"pipeline", {{"schedule", "pipedream"}}},
         {"gradient_norm", false},
         {"optimizer", {{"type", "SGD"}, {"params", {{"lr", 0.1}}}}}},
        "pipedream keeps its stages to the end");
  check({{"pipeline", {{"widths", {2, 1}}}}}, "replicas");
  check({{"replan", {{"when", 1}}}}, "1.05");
}

}  // namespace stagecraft::test
