// Runs under mpirun whose ranks are slow, suspended, stopped or killed: the slow and the suspended go on, the
// others end soon, and say who is missing.

#include "base/json.h"
#include "test/cli/train_cases.h"
#include "test/support/catch.h"

#include <fmt/format.h>

#include <chrono>
#include <fstream>
#include <string>
#include <vector>

namespace stagecraft::test {
namespace {

/// Steps of some milliseconds, and many of them.
Json long_run(const ScratchFolder& folder) {
  Json json = Json::parse(R"({
    "model": {"family": "mlp", "hidden": [64, 48]},
    "data": {"type": "synthetic", "samples": 256, "shape": [32], "classes": 4},
    "loss": {"type": "cross_entropy"},
    "train_batch_size": 64,
    "train_micro_batch_size_per_gpu": 8,
    "train_steps": 600,
    "threads_per_rank": 1,
    "steps_per_print": 0,
    "profiler": {"repeats": 2, "warmup_ms": 0},
    "pipeline": {"cuts": [2]},
    "log": {"timeline_steps": 1}
  })");
  json["run_dir"] = folder.path("run");
  return json;
}

/// Two ranks. `while_it_runs` begins when the first steps are made; it finds mpirun as $launcher, the ranks
/// as $ranks, rank 1 as $one, and ends with what is to be waited for.
CommandResult launch(const ScratchFolder& folder, const Json& config, const std::string& while_it_runs) {
  const std::string script = fmt::format(
      R"sh(export {4}
mpirun -np 2 {0} train {1} &
launcher=$!
if [ -n '{3}' ]; then
  i=0
  while [ "$(cat {2}/metrics.jsonl 2> /dev/null | wc -l)" -lt 20 ] && [ $i -lt 600 ]; do sleep 0.05; i=$((i+1)); done
  ranks=$(pgrep -P $launcher)
  for r in $ranks; do tr '\0' '\n' < /proc/$r/environ | grep -q '^OMPI_COMM_WORLD_RANK=1$' && one=$r; done
  {3}
fi
i=0
while kill -0 $launcher 2> /dev/null && [ $i -lt 1200 ]; do sleep 0.05; i=$((i+1)); done
kill -CONT $ranks 2> /dev/null
kill -KILL $launcher 2> /dev/null
wait $launcher)sh",
      STAGECRAFT_COMMAND, folder.write("run.json", config.dump()), config["run_dir"].get<std::string>(),
      while_it_runs, kMpirunEnvironment);
  return shell_line(folder, "bash " + folder.write("run.sh", script));
}

std::vector<Json> losses(const std::string& run_dir) {
  std::vector<Json> records;
  std::ifstream in(run_dir + "/metrics.jsonl");
  for (std::string line; std::getline(in, line);) records.push_back(Json::parse(line).at("loss"));
  return records;
}

}  // namespace

TEST_CASE("ranks wait for the one that measures, plans and proves, whatever a step's timeout",
          "[train_slow_ranks]") {
  if (!has_mpirun()) return;
  const ScratchFolder folder;
  Json config = long_run(folder);
  config["train_steps"] = 2;
  config["profiler"] = {{"repeats", 10}, {"warmup_ms", 2500}};
  config["comms"] = {{"timeout_s", 0.5}};
  const CommandResult result = launch(folder, config, "");
  INFO(result.err);
  CHECK(result.code == 0);
  config["comms"]["start_up_timeout_s"] = 0.5;
  config["run_dir"] = folder.path("again");
  const CommandResult ended = launch(folder, config, "");
  INFO(ended.err);
  CHECK(ended.code == 4);
  CHECK(says(ended.err, "(comms.start_up_timeout_s)"));
}

TEST_CASE(
    "ranks wait for the one that writes most of a checkpoint, and for a long step, whatever the timeout",
    "[train_slow_ranks]") {
  if (!has_mpirun()) return;
  const ScratchFolder folder;
  Json config = long_run(folder);
  config["train_steps"] = 3;
  config["model"]["hidden"] = {64, 4000, 4000};  // rank 1 has nearly all of it
  config["checkpoint"] = {{"every_steps", 1}};
  config["comms"] = {{"timeout_s", 0.1}};
  const CommandResult result = launch(folder, config, "");
  INFO(result.err);
  CHECK(result.code == 0);
  config["comms"]["save_timeout_s"] = 0.1;
  config["run_dir"] = folder.path("again");
  const CommandResult ended = launch(folder, config, "");
  INFO(ended.err);
  CHECK(ended.code == 4);
  CHECK(says(ended.err, "comms.save_timeout_s)"));
}

TEST_CASE("a job that is suspended for longer than the timeout goes on", "[train_suspended]") {
  if (!has_mpirun()) return;
  const ScratchFolder folder;
  Json config = long_run(folder);
  config["run_dir"] = folder.path("whole");
  REQUIRE(launch(folder, config, "").code == 0);
  config["run_dir"] = folder.path("run");
  config["comms"] = {{"timeout_s", 2}};
  const CommandResult result =
      launch(folder, config,
             "kill -STOP $ranks; sleep 5; kill -CONT $ranks; kill -STOP $ranks; sleep 3; "
             "kill -CONT $one; sleep 0.3; kill -CONT $ranks");
  INFO(result.err);
  CHECK(result.code == 0);
  const bool same = losses(folder.path("run")) == losses(folder.path("whole"));
  CHECK(same);  // not the losses themselves: nobody reads them in a log
}

TEST_CASE("a rank that is stopped ends the others after the timeout, by its name", "[train_lost_ranks]") {
  if (!has_mpirun()) return;
  const ScratchFolder folder;
  Json config = long_run(folder);
  config["train_steps"] = 100'000;
  config["comms"] = {{"timeout_s", 6}};
  const CommandResult result =
      launch(folder, config,
             "kill -STOP $one; began=$(date +%s); "
             "while kill -0 $launcher 2> /dev/null && [ $(($(date +%s) - began)) -lt 40 ]; "
             "do sleep 0.1; done; echo lasted $(($(date +%s) - began)) s");
  INFO(result.out << result.err);
  CHECK(result.code == 4);
  CHECK(says(result.err, "rank 1 has not been heard of for "));
  CHECK(says(result.err, "(comms.timeout_s)"));
  const std::size_t lasted = result.out.rfind("lasted ");
  REQUIRE(lasted != std::string::npos);
  const int seconds = std::stoi(result.out.substr(lasted + 7));
  CHECK(seconds >= 5);
  CHECK(seconds < 30);
}

TEST_CASE("a rank whose thread hangs while its process lives is named, by what steps have taken",
          "[train_lost_ranks]") {
  if (!has_mpirun()) return;
  const ScratchFolder folder;
  // Stops the rank's own thread alone, as a file system or a driver may.
  const std::string hold = folder.write("hold.py", R"(
import ctypes, sys, time
ptrace = ctypes.CDLL(None, use_errno=True).ptrace
thread = int(sys.argv[1])
if ptrace(0x4206, thread, None, None) != 0 or ptrace(0x4207, thread, None, None) != 0:  # SEIZE, INTERRUPT
    print("not allowed", flush=True)
    sys.exit()
print("held", flush=True)
time.sleep(60)
)");
  Json config = long_run(folder);
  config["train_steps"] = 100'000;
  config["comms"] = {{"timeout_s", 300}, {"timeout_pause_s", 2}};
  const CommandResult result =
      launch(folder, config,
             "while [ $(wc -l < " + folder.path("run/metrics.jsonl") +
                 ") -lt 60 ]; do sleep 0.1; done; "
                 "python3 " +
                 hold +
                 " $one & holder=$!; began=$(date +%s); "
                 "while kill -0 $launcher 2> /dev/null && [ $(($(date +%s) - began)) -lt 50 ]; "
                 "do sleep 0.1; done; kill $holder; echo lasted $(($(date +%s) - began)) s");
  INFO(result.out << result.err);
  if (says(result.out, "not allowed")) return;
  CHECK(says(result.out, "held"));
  CHECK(result.code == 4);
  CHECK(says(result.err, "times the slowest of "));
  CHECK(says(result.err, "rank 1 is alive and works on a step"));
}

TEST_CASE("a rank that is killed ends the others within seconds", "[train_lost_ranks]") {
  if (!has_mpirun()) return;
  const ScratchFolder folder;
  Json config = long_run(folder);
  config["train_steps"] = 100'000;
  const auto begun = std::chrono::steady_clock::now();
  const CommandResult result = launch(folder, config, "kill -KILL $one");
  INFO(result.err);
  CHECK(result.code != 0);
  CHECK(std::chrono::steady_clock::now() - begun < std::chrono::seconds(40));
}

}  // namespace stagecraft::test
