// What stops a run from outside: signals, a terminal that is gone, readers that go away.

#include "base/json.h"
#include "test/cli/train_cases.h"
#include "test/support/catch.h"

#include <fmt/format.h>

#include <filesystem>
#include <string>

namespace stagecraft::test {
namespace fs = std::filesystem;

TEST_CASE("SIGTERM ends a run with 75 behind a checkpoint; resumed, it is as if it had not been",
          "[train_signals]") {
  const ScratchFolder folder;
  Json config = tiny_run(folder);
  config["train_steps"] = 1500;
  config["steps_per_print"] = 0;
  config["validation"] = {{"every_steps", 500}};
  const std::string path = folder.write("run.json", config.dump());
  const CommandResult stopped =
      shell(folder,
            fmt::format("{{}} train {0} & p=$!; i=0; while [ ! -s {1}/metrics.jsonl ] && [ $i -lt 300 ]; do "
                        "sleep 0.05; i=$((i+1)); done; kill -TERM $p; wait $p",
                        path, folder.path("run")));
  check_refused(stopped, 75, "stopped by TERM after step");
  const Json note = json::parse_file(folder.path("run/exit.json"));
  CHECK(note["code"] == 75);
  CHECK(says(note["message"].get<std::string>(), "go on with --resume"));
  const std::size_t made = facts(folder.path("run")).size();
  CHECK(made < 1500);
  const CommandResult resumed = stagecraft({"train", path, "--resume"});
  INFO(resumed.err);
  REQUIRE(resumed.code == 0);
  CHECK_FALSE(fs::exists(folder.path("run/exit.json")));
  config["run_dir"] = folder.path("whole");
  REQUIRE(train(folder, config).code == 0);
  CHECK(facts(folder.path("run")) == facts(folder.path("whole")));
}

TEST_CASE("a terminal that is gone stops a run behind a checkpoint, unless nohup says otherwise",
          "[train_signals]") {
  const ScratchFolder folder;
  Json config = tiny_run(folder);
  config["steps_per_print"] = 0;
  const auto hung_up = [&](const std::string& before, int steps) {
    config["train_steps"] = steps;
    config["checkpoint"]["every_steps"] = 1'000'000;  // else it may say that it saves late
    const std::string path = folder.write("run.json", config.dump());
    return shell(folder,
                 fmt::format("{0} {{}} train {1} & p=$!; i=0; while [ ! -s {2}/metrics.jsonl ] && [ $i "
                             "-lt 600 ]; do sleep 0.05; i=$((i+1)); done; kill -HUP $p; wait $p",
                             before, path, folder.path("run")));
  };
  check_refused(hung_up("", 1'000'000), 75, "stopped by HUP after step");
  // UCX handles HUP as soon as it is loaded, which Open MPI 5 does at once. (Where there is none, nothing is loaded.)
  const auto* ucx = GENERATE("", "LD_PRELOAD=libucs.so.0 ");
  fs::remove_all(folder.path("run"));
  CHECK(hung_up(std::string(ucx) + "nohup", 1500).code == 0);
}

TEST_CASE("a signal before the first step ends the run at once", "[train_signals]") {
  const ScratchFolder folder;
  Json config = tiny_run(folder);
  config["profiler"]["repeats"] = 100'000'000;  // for days
  const std::string command = fmt::format(
      "train {} & p=$!; i=0; while [ ! -e {}/.lock ] && [ $i -lt 600 ]; do "
      "sleep 0.05; i=$((i+1)); done; sleep 0.2; kill -TERM $p; wait $p",
      folder.write("run.json", config.dump()), folder.path("run"));
  check_refused(shell(folder, "timeout 60 {} " + command), 75,
                "stopped by TERM before the first step: nothing is lost, start again with --resume");
  CHECK(json::parse_file(folder.path("run/exit.json"))["code"] == 75);
  config["profiler"]["repeats"] = 2;
  CHECK(train(folder, config, {"--resume"}).code == 0);
}

TEST_CASE("a step that takes too long after a SIGTERM is left, and the state before it is saved",
          "[train_signals]") {
  const ScratchFolder folder;
  Json config = tiny_run(folder);
  config["model"] = Json::parse(R"({"family": "sequential", "layers": [
    {"type": "linear", "features": 4},
    {"type": "delay", "forward_ms": 200, "backward_input_ms": 200, "backward_weight_ms": 1, "features": 4,
     "parameters": 1}]})");
  config["pipeline"] = {{"cuts", {1}}};
  config["profiler"]["repeats"] = 1;
  config["comms"]["stop_timeout_s"] = 0.1;
  const std::string path = folder.write("run.json", config.dump());
  const CommandResult stopped =
      shell(folder,
            fmt::format("{{}} train {0} & p=$!; i=0; while [ ! -s {1}/metrics.jsonl ] && [ $i -lt 300 ]; do "
                        "sleep 0.05; i=$((i+1)); done; kill -TERM $p; wait $p",
                        path, folder.path("run")));
  check_refused(stopped, 75, "not over 0.1 s later (comms.stop_timeout_s). The state of step");
  CHECK(json::parse_file(folder.path("run/exit.json"))["code"] == 75);
  const std::size_t made = facts(folder.path("run")).size();
  CHECK(made < 4);
  CHECK(fs::exists(folder.path(fmt::format("run/checkpoints/step-{:08}/manifest.json", made))));
}

TEST_CASE("a run that was killed before its first checkpoint keeps its plan", "[train_signals]") {
  const ScratchFolder folder;
  Json config = tiny_run(folder);
  config["train_steps"] = 100'000;
  const std::string path = folder.write("run.json", config.dump());
  const CommandResult killed =
      shell(folder,
            fmt::format("{{}} train {0} & p=$!; i=0; while [ ! -s {1}/metrics.jsonl ] && [ $i -lt 300 ]; do "
                        "sleep 0.05; i=$((i+1)); done; kill -KILL $p; wait $p",
                        path, folder.path("run")));
  CHECK(killed.code == 137);
  config["profiler"]["repeats"] = 100'000'000;  // for days
  config["train_steps"] = 4;
  CHECK(
      shell(folder, fmt::format("timeout 60 {{}} train {} --resume", folder.write("run.json", config.dump())))
          .code == 0);
}

TEST_CASE("whoever reads what a run prints cannot stop it", "[train_signals]") {
  const ScratchFolder folder;
  Json config = tiny_run(folder);
  config["train_steps"] = 2000;
  config["steps_per_print"] = 1;  // 180 KiB, more than a pipe holds
  config["comms"]["timeout_s"] = 3;
  const std::string run = fmt::format("timeout 100 {{}} train {}", folder.write("run.json", config.dump()));
  const std::string code_file = folder.path("code");
  const auto code = [&] { return read_text_file(code_file); };
  const auto steps_made = [&] { return facts(folder.path("run")).size() - 1; };  // and a validation
  SECTION("one who leaves") {
    const CommandResult result = shell(folder, fmt::format("({}; echo $? > {}) | head -1", run, code_file));
    CHECK(code() == "0\n");
    CHECK(steps_made() == 2000);
    CHECK(messages(result.err) == 1);
    CHECK(says(result.err, "note: standard output: Broken pipe; the run goes on"));
  }
  SECTION("one who sleeps until the run is over") {
    const CommandResult result = shell(
        folder, fmt::format("({}; echo $? > {}) | (i=0; while [ ! -e {}/summary.json ] && [ $i -lt 900 ]; do "
                            "sleep 0.1; i=$((i+1)); done; cat)",
                            run, code_file, folder.path("run")));
    CHECK(code() == "0\n");
    CHECK(steps_made() == 2000);
    CHECK(says(result.out, "step  2000/2000"));
    CHECK_FALSE(says(result.out, "lines are missing"));
    CHECK(says(result.out, "Done: 2000 steps"));
    CHECK(result.err.empty());
  }
  SECTION("a disk that is full") {
    const CommandResult result = shell(folder, run + " > /dev/full");
    CHECK(result.code == 0);
    CHECK(steps_made() == 2000);
    CHECK(says(result.err, "note: standard output: No space left on device"));
  }
  SECTION("a document that cannot be written is an error") {
    check_refused(shell(folder, run + " --set train_steps=4 --json > /dev/full"), 1,
                  "cannot write to standard output");
  }
}

}  // namespace stagecraft::test
