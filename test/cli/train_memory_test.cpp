// What `train` and `plan` say of memory: before anything large is allocated, and where it ends all the same.

#include "base/json.h"
#include "test/cli/train_cases.h"
#include "test/support/catch.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

namespace stagecraft::test {
namespace fs = std::filesystem;

TEST_CASE("a run that its memory cannot hold is refused before it takes any", "[train_memory]") {
  const ScratchFolder folder;
  Json config = tiny_run(folder);
  config["model"]["hidden"] = {4096, 4096, 4096};
  config["data"]["shape"] = {4096};
  config["optimizer"] = {{"type", "Adam"}};
  config["profiler"]["repeats"] = 1;
  const std::string path = folder.write("run.json", config.dump());
  const std::string plan = folder.path("plan.json");
  REQUIRE(stagecraft({"plan", path, "-o", plan}).code == 0);
  const std::string limited = "ulimit -d 500000; {} ";
  check_refused(shell(folder, fmt::format("{} train {} --plan {}", limited, path, plan)), 3,
                "2 ranks need 77");
  CHECK_FALSE(fs::exists(folder.path("run/metrics.jsonl")));
  for (const char* verb : {"train", "profile", "plan"}) {
    INFO(verb);
    check_refused(shell(folder, fmt::format("{} {} {}", limited, verb, path)), 3,
                  "measuring the layers of mlp 4096-4096-4096 needs at least 768.6 MiB");
  }
}

TEST_CASE("a plan that this machine's memory cannot hold is refused, or left out of the choice",
          "[train_memory]") {
  const ScratchFolder folder;
  Json config = tiny_run(folder);
  config["model"]["hidden"] = {512, 512, 512};
  config["data"]["shape"] = {512};
  config["data"]["samples"] = 65536;
  config["train_batch_size"] = 65536;  // 64 micro-batches: fill_drain keeps the activations of all
  config["train_micro_batch_size_per_gpu"] = 1024;
  config["profiler"]["repeats"] = 1;
  const std::string path = folder.write("run.json", config.dump());
  const auto run = [&](const std::string& verb, const std::string& options) {
    return shell(folder, fmt::format("ulimit -d 700000; {{}} {} {} {}", verb, path, options));
  };
  check_refused(run("plan", "--schedule fill_drain"), 3, "the best plan's 2 ranks need ");
  check_refused(run("compare", "--schedules fill_drain --pareto"), 3, "What may fit: --recompute auto");
  const CommandResult both = run("compare", "--schedules fill_drain,1f1b");
  INFO(both.err);
  CHECK(both.code == 0);
  CHECK(says(both.out, "left out: fill_drain, 2 stages, 64 x 1024: 2 ranks need "));
  CHECK(says(both.out, "are free of ulimit -d"));
  CHECK(says(both.out, "the fastest of each schedule"));
  CHECK(says(both.out, "\n  *  1f1b"));
}

TEST_CASE("memory that ends in the run is told in one line, LibTorch's stack in the rank's log",
          "[train_memory]") {
  const ScratchFolder folder;
  Json config = tiny_run(folder);
  const std::string plan = folder.path("plan.json");
  const std::string path = folder.write("run.json", config.dump());
  REQUIRE(stagecraft({"plan", path, "-o", plan}).code == 0);
  Json bare = json::parse_file(plan);  // without costs nothing is proved of activations
  for (const char* key : {"costs", "predicted", "model_fingerprint"}) bare.erase(key);
  bare["micro_batch_size"] = 60'000;
  bare["micro_batches"] = 1;
  config["data"]["shape"] = {1000};
  config["data"]["samples"] = 60'000;
  config["train_batch_size"] = config["train_micro_batch_size_per_gpu"] = 60'000;
  config["train_steps"] = 1;
  folder.write("plan.json", bare.dump());
  folder.write("run.json", config.dump());
  const CommandResult result =
      shell(folder, fmt::format("ulimit -d 350000; {{}} train {} --plan {}", path, plan));
  check_refused(result, 3, "rank 0 at step 1, action ");
  CHECK(says(result.err, "out of memory: 228.9 MiB (240000000 bytes) are asked for one tensor; "));
  CHECK(says(result.err, " are free of ulimit -d (341.8 MiB)"));
  CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
  CHECK(says(read_text_file(folder.path("run/logs/rank-0.log")), "frame #"));
}

TEST_CASE("absurd sizes are refused as such, at once", "[train_memory]") {
  const ScratchFolder folder;
  const Json config = tiny_run(folder);
  const auto with = [&](std::vector<std::string> overrides) {
    std::vector<std::string> arguments;
    for (const std::string& text : overrides) arguments.insert(arguments.end(), {"--set", text});
    const auto begin = std::chrono::steady_clock::now();
    CommandResult result = train(folder, config, arguments);
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));  // the start-up, under load
    return result;
  };
  check_refused(with({"data.classes=1000000000"}), 3,
                "measuring the layers of mlp 16-12 needs at least 126.7 GiB");
  check_refused(with({"model={\"family\": \"gpt\", \"blocks\": 1000000000}", "data.task=tokens",
                      "loss.type=token_cross_entropy"}),
                2, "/model/blocks: 1000000000 blocks");
  check_refused(
      with({"train_batch_size=1000000000", "train_micro_batch_size_per_gpu=1", "data.samples=2000000000"}), 2,
      "makes 1000000000 micro-batches; expected at most 10000000");
  check_refused(
      with({"train_batch_size=2000000", "train_micro_batch_size_per_gpu=1", "data.samples=2000000000"}), 2,
      "makes more than 1000000 of them");
  check_refused(with({"data.validation_samples=1000000000", "train_micro_batch_size_per_gpu=1"}), 2,
                "a validation of 1000000000 samples");
  check_refused(with({"data.shape=[1000000000,1000000000,1000000000]"}), 2,
                "/data/shape: [1000000000, 1000000000, 1000000000] times 4 classes");
}

TEST_CASE("a plan whose memory does not fit is refused with exit 3", "[train_memory]") {
  const ScratchFolder folder;
  Json config = tiny_run(folder);
  config["cluster"] = folder.write(
      "cluster.json",
      R"({"levels": [{"count": 2, "link": {"latency_ms": 0.01, "bytes_per_second": 1e9}}], "memory_bytes": 1000})");
  const CommandResult result = train(folder, config);
  check_refused(result, 3, "no plan fits");
}

}  // namespace stagecraft::test
