// `train` under mpirun: the same run, and one message with the right code where it fails.

#include "base/json.h"
#include "test/cli/train_cases.h"
#include "test/support/catch.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

namespace stagecraft::test {
namespace fs = std::filesystem;

TEST_CASE("ranks that do not fit together end together, with one message", "[train_mpi]") {
  if (!has_mpirun()) return;
  const ScratchFolder folder;
  Json config = tiny_run(folder);
  config["model"]["hidden"] = {4096, 4096};
  config["data"]["shape"] = {4096};
  config["profiler"]["repeats"] = 1;
  const std::string path = folder.write("run.json", config.dump());
  const std::string plan = folder.path("plan.json");
  REQUIRE(stagecraft({"plan", path, "-o", plan}).code == 0);
  // A limit of each process is not shared: rank 1's is the one that is too small.
  const std::string limited = each_rank(folder, {":", "ulimit -d 200000"});
  const CommandResult result =
      shell(folder, fmt::format("{}2 {}{{}} train {} --plan {}", mpirun(), limited, path, plan));
  INFO(result.err);
  CHECK(result.code == 3);
  CHECK(messages(result.err) == 1);
  CHECK(says(result.err, "rank 1: stage 1 needs 12"));
  CHECK(says(result.err, " are free of ulimit -d"));
  CHECK(Json::parse(read_text_file(folder.path("run/exit.json")))["code"] == 3);
}

TEST_CASE("a rank without first and last stage needs no data files", "[train_mpi]") {
  if (!has_mpirun()) return;
  const ScratchFolder folder;
  Json config = tiny_run(folder);
  std::string text;
  while (text.size() < 4000) text += "What is a middle stage to know of words? ";
  fs::create_directories(folder.path("with"));
  fs::create_directories(folder.path("without"));
  folder.write("with/text.txt", text);
  config["data"] = {{"type", "text"}, {"path", "text.txt"}, {"sequence", 8}, {"tokens", "characters"}};
  config["model"] = {{"family", "gpt"}, {"blocks", 2}, {"width", 8}, {"heads", 2}};
  config["loss"]["type"] = "token_cross_entropy";
  config["pipeline"] = {{"stages", 3}};
  config["train_steps"] = 2;
  const std::string path = folder.write("run.json", config.dump());
  const auto run = [&](const std::vector<const char*>& folders) {
    fs::remove_all(folder.path("run"));
    std::vector<std::string> lines;
    for (const char* name : folders) lines.push_back("cd " + folder.path(name));
    return shell(folder, fmt::format("{}{} {}{{}} train {}", mpirun(), folders.size(),
                                     each_rank(folder, lines), path));
  };
  const CommandResult middle = run({"with", "without", "with"});
  INFO(middle.err);
  CHECK(middle.code == 0);
  const CommandResult last = run({"with", "without", "without"});
  CHECK(last.code == 2);
  CHECK(says(last.err, "no such file"));
  CHECK(std::ranges::count(last.err, '\n') == 1);  // and nothing of mpirun's
  // Other data on the last stage's machine is found out.
  folder.write("without/text.txt", text + "Nothing.");
  const CommandResult other = run({"with", "without", "without"});
  CHECK(other.code == 2);
  CHECK(says(other.err, "ranks do not run the same"));
}

TEST_CASE("under mpirun: whatever is refused is one line, also before the ranks have met", "[train_mpi]") {
  if (!has_mpirun()) return;
  const ScratchFolder folder;
  const std::string path = folder.write("run.json", tiny_run(folder).dump());
  for (const int ranks : {1, 2}) {
    for (const std::string& words :
         {"plan " + path, std::string("schema run"), "train " + path + " --no-such-option",
          std::string("trian"), "report " + folder.path("none"), "train " + folder.path("none.json"),
          "profile " + path + " --links x"}) {
      if (ranks == 1 && (words.starts_with("plan") || words.starts_with("schema"))) continue;  // they work
      const CommandResult result = shell(folder, fmt::format("{}{} {{}} {}", mpirun(), ranks, words));
      INFO(ranks << " ranks: " << words << ": " << result.err);
      CHECK(result.code == 2);
      CHECK(std::ranges::count(result.err, '\n') <= 2);  // a usage error says where help is
      CHECK_FALSE(says(result.err, "mpirun"));
    }
  }
}

TEST_CASE("under mpirun: USR1 to mpirun stops the run with 75, whenever it comes", "[train_mpi]") {
  if (!has_mpirun()) return;
  const ScratchFolder folder;
  Json config = tiny_run(folder);
  config["train_steps"] = 1'000'000;
  config["checkpoint"]["every_steps"] = 1'000'000;  // else it may say that it saves late
  const auto stopped = [&](const std::string& file) {
    return shell(
        folder,
        fmt::format("{}mpirun -np 2 {{}} train {} & p=$!; i=0; while [ ! -s {} ] && [ $i -lt 600 ]; do "
                    "sleep 0.05; i=$((i+1)); done; sleep 0.3; kill -USR1 $p; wait $p",
                    kMpirunEnvironment, folder.write("mpi.json", config.dump()), folder.path("run/") + file));
  };
  SECTION("during the training") {
    check_refused(stopped("metrics.jsonl"), 75, "stopped by USR1 after step");
    CHECK(fs::exists(folder.path("run/summary.json")));
  }
  SECTION("before it") {
    config["profiler"]["repeats"] = 100'000'000;
    check_refused(stopped(".lock"), 75, "stopped by USR1 before the first step");
  }
  CHECK(json::parse_file(folder.path("run/exit.json"))["code"] == 75);
}

TEST_CASE("under mpirun: a config's path may be any bytes", "[train_mpi]") {
  if (!has_mpirun()) return;
  const ScratchFolder folder;
  const std::string path = folder.write("r\xffn.json", tiny_run(folder).dump());
  const CommandResult result = shell(folder, fmt::format("{}2 {{}} train {}", mpirun(), path));
  INFO(result.err);
  CHECK(result.code == 0);
  CHECK(says(result.out, "Stopping: `kill -USR1` of mpirun"));
  check_refused(train(folder, tiny_run(folder), {"--set", "data.path=\xff"}), 2, "is not UTF-8");
}

TEST_CASE("under mpirun: the same run as with threads", "[train_mpi]") {
  if (!has_mpirun()) return;
  const ScratchFolder folder;
  Json config = tiny_run(folder);
  REQUIRE(train(folder, config).code == 0);
  config["run_dir"] = folder.path("mpi");
  const CommandResult result =
      shell(folder, fmt::format("{}2 {{}} train {}", mpirun(), folder.write("mpi.json", config.dump())));
  INFO(result.err);
  CHECK(result.code == 0);
  CHECK(says(result.out, "Done: 4 steps"));
  CHECK(facts(folder.path("run")) == facts(folder.path("mpi")));
}

TEST_CASE("under mpirun: a run uses the ranks that it may, and the others wait as spares", "[train_mpi]") {
  if (!has_mpirun()) return;
  const ScratchFolder folder;
  Json config = tiny_run(folder);
  config["pipeline"] = {{"ranks", {{"multiple_of", 2}}}};
  config["data"]["validation_samples"] = 0;
  config["train_steps"] = 4;
  const std::string path = folder.write("mpi.json", config.dump());
  const auto run = [&](int ranks, const std::string& more) {
    return shell(folder, fmt::format("{}{} {{}} train {} --resume {}", mpirun(), ranks, path, more));
  };
  const CommandResult three = run(3, "");
  INFO(three.err);
  CHECK(three.code == 0);
  CHECK(says(three.err, "2 of 3 ranks are used (pipeline.ranks); the others wait for the run's end"));
  CHECK(fs::exists(folder.path("run/profile.json")));
  SECTION("more of them at the next start, with nothing measured twice") {
    const CommandResult four = run(4, "--set train_steps=8");
    INFO(four.err);
    CHECK(four.code == 0);
    CHECK(says(four.err, "the plan needs 2 ranks, but 4 were launched: the run is planned again"));
    CHECK(says(four.err, "run/profile.json of an earlier start"));
    config["train_steps"] = 8;
    config["run_dir"] = folder.path("alone");
    REQUIRE(train(folder, config).code == 0);
    CHECK(facts(folder.path("run")) == facts(folder.path("alone")));
  }
  SECTION("fewer than it needs are refused") {
    check_refused(run(1, ""), 2, "/pipeline/ranks: at least 1 rank, in 2s, but 1 was launched");
  }
  SECTION("a signal stops all of them, with 75") {
    const std::string metrics = folder.path("run/metrics.jsonl");
    fs::remove_all(folder.path("run"));
    const CommandResult stopped =
        shell(folder,
              fmt::format(
                  "{}mpirun -np 3 {{}} train {} --set train_steps=1000000 & p=$!; i=0; while [ ! -s {} ] && "
                  "[ $i -lt 600 ]; do sleep 0.05; i=$((i+1)); done; sleep 0.3; kill -USR1 $p; wait $p",
                  kMpirunEnvironment, path, metrics));
    INFO(stopped.err);
    CHECK(stopped.code == 75);
    CHECK(says(stopped.err, "stopped by USR1 after step"));
  }
}

TEST_CASE("under mpirun: failures end the job with one message and the right code", "[train_mpi]") {
  if (!has_mpirun()) return;
  const ScratchFolder folder;
  Json config = tiny_run(folder);
  REQUIRE(train(folder, config).code == 0);
  const std::string plan = folder.path("run") + "/plan.json";
  config["run_dir"] = folder.path("mpi");
  const auto launched = [&](int ranks, const std::string& more) {
    return shell(folder, fmt::format("{}{} {{}} train {} {}", mpirun(), ranks,
                                     folder.write("mpi.json", config.dump()), more));
  };
  check_refused(launched(3, "--plan " + plan), 2, "the plan needs 2 ranks, but 3 were launched");
  check_refused(launched(3, ""), 2, "2 stages need 2 ranks, but 3 were launched: launch 2, or write 2 cuts");
  check_refused(launched(2, "--set trian_steps=3"), 2, "did you mean \"train_steps\"?");
  check_refused(launched(2, "--set comms.backend=local"), 2, "2 copies");
  // A rank other than the first fails, while the first waits for it.
  fs::create_directories(folder.path("mpi") + "/logs/rank-1.log");
  check_refused(launched(2, "--resume"), 2, "rank-1.log");
  CHECK(json::parse_file(folder.path("mpi") + "/exit.json")["rank"] == 1);
}

TEST_CASE(
    "under mpirun: ranks started in different folders share one run directory, or are told that they do not",
    "[train_mpi]") {
  if (!has_mpirun()) return;
  const ScratchFolder folder;
  Json config = tiny_run(folder);
  config["run_dir"] = "run";  // where rank 0 stands
  const std::string file = folder.write("run.json", config.dump());
  fs::create_directories(folder.path("a/run"));
  fs::create_directories(folder.path("b"));
  const auto launched = [&](const std::string& second) {
    const std::string apart =
        each_rank(folder, {"cd " + folder.path("a"), "cd " + folder.path("b") + second});
    return shell(folder, fmt::format("{}2 {}{{}} train {}", mpirun(), apart, file));
  };
  // Rank 1 sees another disk in the folder's place.
  if (std::system("unshare -m true > /dev/null 2>&1") == 0) {
    const auto apart = launched("; exec unshare -m sh -c 'mount -t tmpfs none " + folder.path("a/run") +
                                R"( && exec "$@"' sh "$@")");
    INFO(apart.err);
    CHECK(apart.code == 2);
    CHECK(says(apart.err,
               "rank 1 does not see this folder, which rank 0 made just now: run_dir must be on a disk"));
    fs::remove_all(folder.path("a/run"));
  }
  const auto together = launched("");
  INFO(together.err);
  CHECK(together.code == 0);
  CHECK(fs::exists(folder.path("a/run/logs/rank-1.log")));
  CHECK_FALSE(fs::exists(folder.path("b/run")));
}

TEST_CASE("numbers that are not finite end a run with one message and exit 2, and are not saved",
          "[train_mpi]") {
  const ScratchFolder folder;
  Json config = tiny_run(folder);
  config["checkpoint"] = {{"every_steps", 1}, {"keep", 1}};
  config["pipeline"]["schedule"] = GENERATE("1f1b", "pipedream");
  const auto launched = [&](const char* launcher, const char* params) {
    fs::remove_all(folder.path("run"));
    config["optimizer"] = Json::parse(fmt::format(R"({{"type": "SGD", "params": {{{}}}}})", params));
    return shell(folder, fmt::format("{}{{}} train {}", launcher, folder.write("run.json", config.dump())));
  };
  const std::string two = mpirun() + "2 ";
  for (const char* launcher : {"", two.c_str()}) {
    if (*launcher != 0 && !has_mpirun()) continue;
    // The gradient of step 1 is finite, its update is not.
    check_refused(launched(launcher, R"("lr": 3e38, "weight_decay": 1e30)"), 2, "step 1: after it ");
    CHECK(fs::is_empty(folder.path("run/checkpoints")));
    // Weights that no forward survives.
    check_refused(launched(launcher, R"("lr": 1e30)"), 2, "step 2: the gradient of ");
    CHECK(fs::exists(folder.path("run/checkpoints/step-00000001/manifest.json")));
    const Json exit = json::parse_file(folder.path("run/exit.json"));
    CHECK(exit["code"] == 2);
    CHECK(says(exit["message"], folder.path("run/checkpoints/step-00000001") + " has the last good state"));
  }
  const CommandResult skipped =
      stagecraft({"train", folder.path("run.json"), "--resume", "--set", "on_overflow=skip"});
  INFO(skipped.err);
  CHECK(skipped.code == 0);
  CHECK(says(skipped.out, "Done: 4 steps (3 skipped: the gradient was not finite)"));
  // The losses of those weights are not finite either, and the run can be read all the same.
  CHECK(stagecraft({"report", folder.path("run")}).code == 0);
}

}  // namespace stagecraft::test
