// `train` and `report` as a user runs them: what goes wrong ends in one message, the right exit code and no
// rank left behind.

#include "stagecraft/base/files.h"
#include "stagecraft/base/json.h"
#include "test/support/catch.h"
#include "test/support/command.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <sys/wait.h>
#include <unistd.h>

using stagecraft::Json;
using stagecraft::test::CommandResult;
using stagecraft::test::read_text_file;
using stagecraft::test::ScratchFolder;
namespace fs = std::filesystem;

namespace {

Json tiny(const ScratchFolder& folder) {
  Json json = Json::parse(R"({
    "model": {"family": "mlp", "hidden": [16, 12]},
    "data": {"type": "synthetic", "samples": 96, "validation_samples": 16, "shape": [8], "classes": 4},
    "loss": {"type": "cross_entropy"},
    "train_batch_size": 32,
    "train_micro_batch_size_per_gpu": 8,
    "train_steps": 4,
    "threads_per_rank": 1,
    "profiler": {"repeats": 2, "warmup_ms": 0},
    "pipeline": {"cuts": [2]},
    "comms": {"timeout_s": 20}
  })");
  json["run_dir"] = folder.path("run");
  return json;
}

/// The binary in a shell: for launchers, environments and signals. `{}` in `command` stands for the binary.
CommandResult shell(const ScratchFolder& folder, const std::string& command) {
  const std::string out = folder.path("shell.out");
  const std::string err = folder.path("shell.err");
  const std::string line = fmt::format("( {} ) > {} 2> {} < /dev/null",
                                       fmt::format(fmt::runtime(command), STAGECRAFT_COMMAND), out, err);
  const int status = std::system(line.c_str());  // NOLINT: our own words
  CommandResult result;
  result.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  result.out = read_text_file(out);
  result.err = read_text_file(err);
  return result;
}

CommandResult train(const ScratchFolder& folder, const Json& config, std::vector<std::string> more = {}) {
  more.insert(more.begin(), {"train", folder.write("run.json", config.dump())});
  return stagecraft::test::stagecraft(more);
}

using stagecraft::test::says;

/// One message of the program's, whatever launchers add.
int messages(const std::string& err) {
  int count = 0;
  for (std::size_t at = err.find("stagecraft: "); at != std::string::npos;
       at = err.find("stagecraft: ", at + 1)) {
    if (at == 0 || err[at - 1] == '\n') ++count;
  }
  return count;
}

void check_refused(const CommandResult& result, int code, const std::string& what) {
  INFO(result.err);
  CHECK(result.code == code);
  CHECK(says(result.err, what));
  CHECK(messages(result.err) == 1);
}

constexpr const char* kMpirun =
    "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 timeout "
    "60 "
    "mpirun -np ";

bool has_mpirun() { return std::system("command -v mpirun > /dev/null 2>&1") == 0; }

/// What the run's lines say, times left out.
std::vector<Json> facts(const std::string& run_dir) {
  std::vector<Json> records;
  std::ifstream in(run_dir + "/metrics.jsonl");
  for (std::string line; std::getline(in, line);) {
    Json record = Json::parse(line);
    for (const char* key : {"ms", "samples_per_second"}) record.erase(key);
    records.push_back(record);
  }
  return records;
}

}  // namespace

TEST_CASE("train runs, and report compares", "[train]") {
  const ScratchFolder folder;
  const CommandResult trained = train(folder, tiny(folder));
  INFO(trained.err);
  REQUIRE(trained.code == 0);
  CHECK(trained.err.empty());
  CHECK(says(trained.out, "Plan: 2 stages"));
  CHECK(says(trained.out, "Done: 4 steps"));
  const std::string html = folder.path("report.html");
  const std::string svg = folder.path("timeline.svg");
  const CommandResult report =
      stagecraft::test::stagecraft({"report", folder.path("run"), "--html", html, "--svg", svg});
  INFO(report.err);
  REQUIRE(report.code == 0);
  CHECK(says(report.out, "wait activation"));
  CHECK(says(report.out, "step, median ms"));
  const std::string page = read_text_file(html);
  CHECK(says(page, "<svg"));
  CHECK_FALSE(says(page, "http://cdn"));
  CHECK(says(read_text_file(svg), "the last 2 steps, measured"));
  const CommandResult json = stagecraft::test::stagecraft({"report", folder.path("run"), "--json"});
  CHECK(Json::parse(json.out)["stage_times"].size() == 2);
}

TEST_CASE("a run that its memory cannot hold is refused before it takes any", "[train]") {
  const ScratchFolder folder;
  Json config = tiny(folder);
  config["model"]["hidden"] = {4096, 4096, 4096};
  config["data"]["shape"] = {4096};
  config["optimizer"] = {{"type", "Adam"}};
  config["profiler"]["repeats"] = 1;
  const std::string path = folder.write("run.json", config.dump());
  const std::string plan = folder.path("plan.json");
  REQUIRE(stagecraft::test::stagecraft({"plan", path, "-o", plan}).code == 0);
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

TEST_CASE("a plan that this machine's memory cannot hold is refused, or left out of the choice", "[train]") {
  const ScratchFolder folder;
  Json config = tiny(folder);
  config["model"]["hidden"] = {512, 512, 512};
  config["data"]["shape"] = {512};
  config["data"]["samples"] = 65536;
  config["train_batch_size"] = 65536;  // 64 micro-batches: fill_drain keeps the activations of all
  config["train_micro_batch_size_per_gpu"] = 1024;
  config["profiler"]["repeats"] = 1;
  const std::string path = folder.write("run.json", config.dump());
  const auto plan = [&](const std::string& options) {
    return shell(folder, fmt::format("ulimit -d 700000; {{}} plan {} {}", path, options));
  };
  check_refused(plan("--schedule fill_drain"), 3, "the best plan's 2 ranks need ");
  check_refused(plan("--schedule fill_drain --pareto"), 3, "What may fit: --recompute auto");
  const CommandResult both = plan("--schedule fill_drain,1f1b");
  INFO(both.err);
  CHECK(both.code == 0);
  CHECK(says(both.out, "left out: fill_drain, 2 stages, 64 x 1024: 2 ranks need "));
  CHECK(says(both.out, "are free of ulimit -d"));
  CHECK(says(both.out, "the fastest of each schedule"));
  CHECK(says(both.out, "\n  *  1f1b"));
}

TEST_CASE("memory that ends in the run is told in one line, LibTorch's stack in the rank's log", "[train]") {
  const ScratchFolder folder;
  Json config = tiny(folder);
  const std::string plan = folder.path("plan.json");
  const std::string path = folder.write("run.json", config.dump());
  REQUIRE(stagecraft::test::stagecraft({"plan", path, "-o", plan}).code == 0);
  Json bare = stagecraft::json::parse_file(plan);  // without costs nothing is proved of activations
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
  check_refused(result, 3, "rank 0 at step 0, action ");
  CHECK(says(result.err, "out of memory: 228.9 MiB (240000000 bytes) are asked for one tensor; "));
  CHECK(says(result.err, " are free of ulimit -d (341.8 MiB)"));
  CHECK(std::count(result.err.begin(), result.err.end(), '\n') == 1);
  CHECK(says(read_text_file(folder.path("run/logs/rank-0.log")), "frame #"));
}

TEST_CASE("absurd sizes are refused as such, at once", "[train]") {
  const ScratchFolder folder;
  const Json config = tiny(folder);
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

TEST_CASE("plan --replan answers from a run what another plan would bring", "[train]") {
  const ScratchFolder folder;
  const Json config = tiny(folder);
  REQUIRE(train(folder, config).code == 0);
  const std::string profile = folder.path("profile.json");
  REQUIRE(stagecraft::test::stagecraft({"profile", folder.write("run.json", config.dump()), "-o", profile})
              .code == 0);
  const std::string cluster = folder.write(
      "cluster.json", R"({"levels": [{"count": 2, "link": {"latency_ms": 0.01, "bytes_per_second": 1e9}}]})");
  std::vector<std::string> line{"plan",      "--replan", folder.path("run"), "--profile", profile,
                                "--cluster", cluster};
  const CommandResult text = stagecraft::test::stagecraft(line);
  INFO(text.err);
  REQUIRE(text.code == 0);
  CHECK(says(text.out, "If a device is slow"));
  CHECK(says(text.out, "If the layers are slow"));
  const std::string plan = folder.path("new.json");
  line.insert(line.end(), {"--json", "--switch-seconds", "5", "--blame", "layers", "-o", plan});
  const CommandResult json = stagecraft::test::stagecraft(line);
  REQUIRE(json.code == 0);
  const Json answers = Json::parse(json.out)["answers"];
  REQUIRE(answers.size() == 2);
  CHECK(Json::parse(json.out)["switch_ms"] == 5000);
  CHECK(answers[1]["blame"] == "layers");
  CHECK(stagecraft::json::parse_file(plan) == answers[1]["plan"]);
  const double gain = answers[1]["gain_ms"];
  CHECK(answers[1]["break_even_steps"].is_null() == (gain == 0));

  line.insert(line.end(), {"--stages", "2"});
  check_refused(stagecraft::test::stagecraft(line), 2, "keeps what the run's plan says");
  check_refused(stagecraft::test::stagecraft({"plan", "--replan", folder.path("run")}), 2,
                "--profile and --cluster");
  check_refused(stagecraft::test::stagecraft({"plan", "--blame", "layers"}), 2, "--replan");
}

TEST_CASE("train --json prints one document, --print-config a config that runs", "[train]") {
  const ScratchFolder folder;
  const CommandResult result = train(folder, tiny(folder), {"--json"});
  REQUIRE(result.code == 0);
  CHECK(Json::parse(result.out)["steps"] == 4);
  const CommandResult config = train(folder, tiny(folder), {"--print-config"});
  REQUIRE(config.code == 0);
  Json effective = Json::parse(config.out);
  CHECK(effective["gradient_accumulation_steps"] == 4);
  effective["run_dir"] = folder.path("again");
  CHECK(train(folder, effective).code == 0);
  CHECK(facts(folder.path("run")) == facts(folder.path("again")));
}

TEST_CASE("a config that cannot be used exits 2 with one message", "[train]") {
  const ScratchFolder folder;
  const auto refused = [&](const char* pointer, const Json& value, const std::string& what) {
    Json config = tiny(folder);
    config[Json::json_pointer(pointer)] = value;
    check_refused(train(folder, config), 2, what);
    CHECK_FALSE(fs::exists(folder.path("run") + "/metrics.jsonl"));
  };
  refused("/trian_steps", 3, "did you mean \"train_steps\"?");
  refused("/train_batch_size", "many", "/train_batch_size: expected an integer");
  refused("/gradient_accumulation_steps", 7, "do not add up");
  refused("/train_batch_size", 1000, "more than the 96 training samples");
  refused("/model", Json{{"family", "gpt"}, {"width", 10}, {"heads", 3}}, "/model/heads");
  refused("/model", Json{{"family", "convnet"}}, "/model");
  refused("/loss/type", "token_cross_entropy", "/loss/type: token_cross_entropy does not fit the data");
  refused("/loss/type", "mse", "/loss/type: mse does not fit the data");
  refused("/data/task", "regression", "/loss/type: cross_entropy does not fit the data");
  refused("/model", Json::parse(R"({"family": "sequential", "layers": [{"type": "linear", "features": 3}]})"),
          "/model: sequential of 1 gives [3] a sample, but cross_entropy needs [classes], 4 of them");
  refused("/profiler/micro_batch_sizes", Json{8, -1}, "/profiler/micro_batch_sizes");
  refused("/model/hidden", Json{std::int64_t{1} << 62}, "/model");
  refused("/pipeline/cuts", Json{9}, "cuts");
  refused("/pipeline/stages", 5, "stages");
  refused("/data", Json{{"type", "text"}, {"path", folder.path("none.txt")}}, "none.txt");
  refused("/data", Json{{"type", "idx"}, {"path", folder.path("none")}}, folder.path("none"));
  refused("/initial_checkpoint", folder.path("none"), folder.path("none"));
  check_refused(stagecraft::test::stagecraft({"train", folder.path("none.json")}), 2, "none.json");
  check_refused(stagecraft::test::stagecraft({"train"}), 2, "CONFIG is required");
}

TEST_CASE("a micro-batch too small for a layer is refused at the start, wherever in the epoch it comes",
          "[train]") {
  const ScratchFolder folder;
  Json config = tiny(folder);
  config["model"] = Json::parse(R"({"family": "sequential", "layers": [
    {"type": "linear", "features": 8}, {"type": "batch_norm"}, {"type": "linear", "features": 4}]})");
  config["pipeline"] = {{"cuts", {1}}};
  config["data"]["samples"] = 105;  // 32 + 32 + 32 + 9, and 9 is 8 + 1
  config["train_steps"] = 20;
  check_refused(train(folder, config), 2,
                "layer \"batch_norm1\" (batch_norm) needs micro-batches of 2 samples");
  config["train_steps"] = 3;  // never gets there
  CHECK(train(folder, config).code == 0);
  fs::remove_all(folder.path("run"));
  config["train_steps"] = 20;
  config["data"]["drop_last"] = true;
  CHECK(train(folder, config).code == 0);
}

TEST_CASE("truncated data exits 2 and names the file", "[train]") {
  const ScratchFolder folder;
  const std::string from = STAGECRAFT_TEST_DATA "/fashion";
  for (const auto& entry : fs::recursive_directory_iterator(from)) {
    if (!entry.is_regular_file()) continue;
    const std::string name = entry.path().filename();
    std::string bytes = read_text_file(entry.path());
    if (says(name, "train-images")) bytes.resize(bytes.size() / 2);
    folder.write(name, bytes);
  }
  Json config = tiny(folder);
  config["data"] = {{"type", "idx"}, {"path", folder.path("")}};
  config["train_batch_size"] = 8;
  const CommandResult result = train(folder, config);
  check_refused(result, 2, "train-images");
}

TEST_CASE("a run directory in use, of another run, or not writable exits 2", "[train]") {
  const ScratchFolder folder;
  Json config = tiny(folder);
  REQUIRE(train(folder, config).code == 0);
  check_refused(train(folder, config), 2, "--resume");
  config["run_dir"] = "/proc/stagecraft";
  check_refused(train(folder, config), 2, "/proc/stagecraft");
  config["run_dir"] = folder.path("locked");
  fs::create_directories(folder.path("locked"));
  const CommandResult locked =
      shell(folder, fmt::format("flock {0}/.lock {{}} train {1}", folder.path("locked"),
                                folder.write("run.json", config.dump())));
  check_refused(locked, 2, "is in use by another run");
}

TEST_CASE("a plan of another model, size or precision exits 2", "[train]") {
  const ScratchFolder folder;
  Json config = tiny(folder);
  REQUIRE(train(folder, config).code == 0);
  const Json plan = stagecraft::json::parse_file(folder.path("run") + "/plan.json");
  config["run_dir"] = folder.path("second");
  const auto with = [&](const char* key, const Json& value) {
    Json changed = plan;
    changed[key] = value;
    return train(folder, config, {"--plan", folder.write("plan.json", changed.dump())});
  };
  check_refused(with("model_fingerprint", "0123456789abcdef"), 2, "for another model");
  check_refused(with("dtype", "float64"), 2, "/dtype: the plan is for float64");
  check_refused(with("micro_batch_size", 4), 2, "/micro_batch_size: the plan is for micro-batches of 4");
  check_refused(with("stage", 1), 2, "did you mean \"stages\"?");
  CHECK(with("model", "a name for people").code == 0);
  config["run_dir"] = folder.path("third");
  config["pipeline"] = {{"schedule", "pipedream"}};
  check_refused(with("model", "x"), 2, "/pipeline/schedule: pipedream, but the plan");
}

TEST_CASE("a plan whose memory does not fit is refused with exit 3", "[train]") {
  const ScratchFolder folder;
  Json config = tiny(folder);
  config["cluster"] = folder.write(
      "cluster.json",
      R"({"levels": [{"count": 2, "link": {"latency_ms": 0.01, "bytes_per_second": 1e9}}], "memory_bytes": 100})");
  const CommandResult result = train(folder, config);
  check_refused(result, 3, "no plan fits");
}

TEST_CASE("activation checkpointing recomputes and changes no loss; beside a plan it must agree", "[train]") {
  const ScratchFolder folder;
  Json config = tiny(folder);
  config["model"]["dropout"] = 0.2;
  REQUIRE(train(folder, config).code == 0);
  const auto kept = facts(folder.path("run"));
  config["activation_checkpointing"] = {{"recompute", "all"}};
  config["run_dir"] = folder.path("recomputed");
  const CommandResult result = train(folder, config);
  INFO(result.err);
  REQUIRE(result.code == 0);
  CHECK(says(result.out, "1f1b with recomputation"));
  CHECK(facts(folder.path("recomputed")) == kept);
  CHECK(says(read_text_file(folder.path("recomputed/plan.json")), "\"recompute\": \"all\""));
  CHECK(says(read_text_file(folder.path("recomputed/timeline.json")), "\"recompute\""));

  const std::string plan = folder.path("recomputed/plan.json");
  config["run_dir"] = folder.path("again");
  CHECK(train(folder, config, {"--plan", plan, "--dry-run"}).code == 0);
  config["activation_checkpointing"]["recompute"] = "auto";  // whatever the plan has
  CHECK(train(folder, config, {"--plan", plan, "--dry-run"}).code == 0);
  const CommandResult chosen = train(folder, config, {"--dry-run"});
  CHECK(chosen.code == 0);
  CHECK(!says(chosen.out, "with recomputation"));  // memory suffices
  config["activation_checkpointing"]["recompute"] = "all_but_last";
  check_refused(train(folder, config, {"--plan", plan, "--dry-run"}), 2,
                "/activation_checkpointing/recompute: all_but_last, but the plan");
}

TEST_CASE("launcher variables that MPI does not confirm exit 2 with one message", "[train]") {
  const ScratchFolder folder;
  const std::string config = folder.write("run.json", tiny(folder).dump());
  for (const char* variables :
       {"OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0", "PMI_SIZE=3", "SLURM_NTASKS=2 SLURM_PROCID=0"}) {
    INFO(variables);
    const CommandResult result = shell(
        folder,
        fmt::format("OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 {} timeout 30 {{}} train {}",
                    variables, config));
    check_refused(result, 2, "processes were launched");
    CHECK_FALSE(fs::exists(folder.path("run")));
  }
  const CommandResult other =
      shell(folder, fmt::format("OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 "
                                "OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=1 {{}} train {}",
                                config));
  CHECK(other.code == 2);
  CHECK(messages(other.err) == 0);  // rank 0 says it
}

TEST_CASE("SIGTERM ends a run with 75 behind a checkpoint; resumed, it is as if it had not been", "[train]") {
  const ScratchFolder folder;
  Json config = tiny(folder);
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
  const Json note = stagecraft::json::parse_file(folder.path("run/exit.json"));
  CHECK(note["code"] == 75);
  CHECK(says(note["message"].get<std::string>(), "go on with --resume"));
  const std::size_t made = facts(folder.path("run")).size();
  CHECK(made < 1500);
  const CommandResult resumed = stagecraft::test::stagecraft({"train", path, "--resume"});
  INFO(resumed.err);
  REQUIRE(resumed.code == 0);
  CHECK_FALSE(fs::exists(folder.path("run/exit.json")));
  config["run_dir"] = folder.path("whole");
  REQUIRE(train(folder, config).code == 0);
  CHECK(facts(folder.path("run")) == facts(folder.path("whole")));
}

TEST_CASE("ranks that do not fit together end together, with one message", "[train_mpi]") {
  if (!has_mpirun()) return;
  const ScratchFolder folder;
  Json config = tiny(folder);
  config["model"]["hidden"] = {4096, 4096};
  config["data"]["shape"] = {4096};
  config["profiler"]["repeats"] = 1;
  const std::string path = folder.write("run.json", config.dump());
  const std::string plan = folder.path("plan.json");
  REQUIRE(stagecraft::test::stagecraft({"plan", path, "-o", plan}).code == 0);
  // A limit of each process is not shared: rank 1's is the one that is too small.
  const std::string limited =
      folder.write("limited.sh", "[ $OMPI_COMM_WORLD_RANK = 1 ] && ulimit -d 200000\nexec \"$@\"\n");
  const CommandResult result =
      shell(folder, fmt::format("{}2 bash {} {{}} train {} --plan {}", kMpirun, limited, path, plan));
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
  Json config = tiny(folder);
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
    std::string line = kMpirun;
    line.resize(line.rfind("-np"));
    for (std::size_t r = 0; r < folders.size(); ++r) {
      line +=
          fmt::format("{} -np 1 -wdir {} {{}} train {}", r > 0 ? " :" : "", folder.path(folders[r]), path);
    }
    std::string once;  // shell() fills in one place
    for (std::size_t at = 0; at < line.size();) {
      const std::size_t next = line.find("{}", at);
      once += line.substr(at, next == std::string::npos ? next : next - at);
      if (next == std::string::npos) break;
      once += STAGECRAFT_COMMAND;
      at = next + 2;
    }
    return shell(folder, once);
  };
  const CommandResult middle = run({"with", "without", "with"});
  INFO(middle.err);
  CHECK(middle.code == 0);
  const CommandResult last = run({"with", "without", "without"});
  CHECK(last.code == 2);
  CHECK(says(last.err, "no such file"));
  // Other data on the last stage's machine is found out.
  folder.write("without/text.txt", text + "Nothing.");
  const CommandResult other = run({"with", "without", "without"});
  CHECK(other.code == 2);
  CHECK(says(other.err, "ranks do not run the same"));
}

TEST_CASE("a terminal that is gone stops a run behind a checkpoint, unless nohup says otherwise", "[train]") {
  const ScratchFolder folder;
  Json config = tiny(folder);
  config["steps_per_print"] = 0;
  const auto hung_up = [&](const std::string& before, int steps) {
    config["train_steps"] = steps;
    const std::string path = folder.write("run.json", config.dump());
    return shell(folder,
                 fmt::format("{0} {{}} train {1} & p=$!; i=0; while [ ! -s {2}/metrics.jsonl ] && [ $i "
                             "-lt 600 ]; do sleep 0.05; i=$((i+1)); done; kill -HUP $p; wait $p",
                             before, path, folder.path("run")));
  };
  check_refused(hung_up("", 1'000'000), 75, "stopped by HUP after step");
  fs::remove_all(folder.path("run"));
  CHECK(hung_up("nohup", 1500).code == 0);
}

TEST_CASE("a signal before the first step ends the run at once", "[train]") {
  const ScratchFolder folder;
  Json config = tiny(folder);
  config["profiler"]["repeats"] = 100'000'000;  // for days
  const std::string command = fmt::format(
      "train {} & p=$!; i=0; while [ ! -e {}/.lock ] && [ $i -lt 600 ]; do "
      "sleep 0.05; i=$((i+1)); done; sleep 0.2; kill -TERM $p; wait $p",
      folder.write("run.json", config.dump()), folder.path("run"));
  check_refused(shell(folder, "timeout 60 {} " + command), 75,
                "stopped by TERM before the first step: nothing is lost, start again with --resume");
  CHECK(stagecraft::json::parse_file(folder.path("run/exit.json"))["code"] == 75);
  config["profiler"]["repeats"] = 2;
  CHECK(train(folder, config, {"--resume"}).code == 0);
}

TEST_CASE("whoever reads what a run prints cannot stop it", "[train]") {
  const ScratchFolder folder;
  Json config = tiny(folder);
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

TEST_CASE("under mpirun: USR1 to mpirun stops the run with 75, whenever it comes", "[train_mpi]") {
  if (!has_mpirun()) return;
  const ScratchFolder folder;
  Json config = tiny(folder);
  config["train_steps"] = 1'000'000;
  const auto stopped = [&](const std::string& file) {
    const std::string mpirun = std::string(kMpirun).replace(std::string(kMpirun).find("timeout"), 10, "");
    return shell(folder,
                 fmt::format("{}2 {{}} train {} & p=$!; i=0; while [ ! -s {} ] && [ $i -lt 600 ]; do "
                             "sleep 0.05; i=$((i+1)); done; sleep 0.3; kill -USR1 $p; wait $p",
                             mpirun, folder.write("mpi.json", config.dump()), folder.path("run/") + file));
  };
  SECTION("during the training") {
    check_refused(stopped("metrics.jsonl"), 75, "stopped by USR1 after step");
    CHECK(fs::exists(folder.path("run/summary.json")));
  }
  SECTION("before it") {
    config["profiler"]["repeats"] = 100'000'000;
    check_refused(stopped(".lock"), 75, "stopped by USR1 before the first step");
  }
  CHECK(stagecraft::json::parse_file(folder.path("run/exit.json"))["code"] == 75);
}

TEST_CASE("under mpirun: a config's path may be any bytes", "[train_mpi]") {
  if (!has_mpirun()) return;
  const ScratchFolder folder;
  const std::string path = folder.write("r\xffn.json", tiny(folder).dump());
  const CommandResult result = shell(folder, fmt::format("{}2 {{}} train {}", kMpirun, path));
  INFO(result.err);
  CHECK(result.code == 0);
  CHECK(says(result.out, "Stopping: `kill -USR1` of mpirun"));
  check_refused(train(folder, tiny(folder), {"--set", "data.path=\xff"}), 2, "is not UTF-8");
}

TEST_CASE("under mpirun: the same run as with threads", "[train_mpi]") {
  if (!has_mpirun()) return;
  const ScratchFolder folder;
  Json config = tiny(folder);
  REQUIRE(train(folder, config).code == 0);
  config["run_dir"] = folder.path("mpi");
  const CommandResult result =
      shell(folder, fmt::format("{}2 {{}} train {}", kMpirun, folder.write("mpi.json", config.dump())));
  INFO(result.err);
  CHECK(result.code == 0);
  CHECK(says(result.out, "Done: 4 steps"));
  CHECK(facts(folder.path("run")) == facts(folder.path("mpi")));
}

TEST_CASE("under mpirun: failures end the job with one message and the right code", "[train_mpi]") {
  if (!has_mpirun()) return;
  const ScratchFolder folder;
  Json config = tiny(folder);
  REQUIRE(train(folder, config).code == 0);
  const std::string plan = folder.path("run") + "/plan.json";
  config["run_dir"] = folder.path("mpi");
  const auto launched = [&](int ranks, const std::string& more) {
    return shell(folder, fmt::format("{}{} {{}} train {} {}", kMpirun, ranks,
                                     folder.write("mpi.json", config.dump()), more));
  };
  check_refused(launched(3, "--plan " + plan), 2, "the plan needs 2 ranks, but 3 were launched");
  check_refused(launched(3, ""), 2, "2 stages need 2 ranks, but 3 were launched");
  check_refused(launched(2, "--set trian_steps=3"), 2, "did you mean \"train_steps\"?");
  check_refused(launched(2, "--set comms.backend=local"), 2, "2 copies");
  // A rank other than the first fails, while the first waits for it.
  fs::create_directories(folder.path("mpi") + "/logs/rank-1.log");
  check_refused(launched(2, "--resume"), 2, "rank-1.log");
  CHECK(stagecraft::json::parse_file(folder.path("mpi") + "/exit.json")["rank"] == 1);
}

TEST_CASE(
    "under mpirun: ranks started in different folders share one run directory, or are told that they do not",
    "[train_mpi]") {
  if (!has_mpirun()) return;
  const ScratchFolder folder;
  Json config = tiny(folder);
  config["run_dir"] = "run";  // where rank 0 stands
  const std::string file = folder.write("run.json", config.dump());
  fs::create_directories(folder.path("a/run"));
  fs::create_directories(folder.path("b"));
  const auto launched = [&](const std::string& second) {
    return shell(folder, fmt::format("{0}1 --wdir {1} {{0}} train {2} : -np 1 --wdir {3} {4}{{0}} train {2}",
                                     kMpirun, folder.path("a"), file, folder.path("b"), second));
  };
  // Rank 1 sees another disk in the folder's place.
  if (std::system("unshare -m true > /dev/null 2>&1") == 0) {
    const auto apart =
        launched("unshare -m sh -c 'mount -t tmpfs none " + folder.path("a/run") + R"( && exec "$@"' sh )");
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
          "[train][train_mpi]") {
  const ScratchFolder folder;
  Json config = tiny(folder);
  config["checkpoint"] = {{"every_steps", 1}, {"keep", 1}};
  config["pipeline"]["schedule"] = GENERATE("1f1b", "pipedream");
  const auto launched = [&](const char* launcher, const char* lr) {
    fs::remove_all(folder.path("run"));
    config["optimizer"] = Json::parse(fmt::format(R"({{"type": "SGD", "params": {{"lr": {}}}}})", lr));
    return shell(folder, fmt::format("{}{{}} train {}", launcher, folder.write("run.json", config.dump())));
  };
  const std::string mpirun = fmt::format("{}2 ", kMpirun);
  for (const char* launcher : {"", mpirun.c_str()}) {
    if (*launcher != 0 && !has_mpirun()) continue;
    // The gradient of step 1 is finite, its update is not.
    check_refused(launched(launcher, "1e300"), 2, "step 1: after it ");
    CHECK(fs::is_empty(folder.path("run/checkpoints")));
    // Weights that no forward survives.
    check_refused(launched(launcher, "1e30"), 2, "step 2: the gradient of ");
    CHECK(fs::exists(folder.path("run/checkpoints/step-00000001/complete")));
    const Json exit = stagecraft::json::parse_file(folder.path("run/exit.json"));
    CHECK(exit["code"] == 2);
    CHECK(says(exit["message"], folder.path("run/checkpoints/step-00000001") + " has the last good state"));
  }
  const CommandResult skipped = stagecraft::test::stagecraft(
      {"train", folder.path("run.json"), "--resume", "--set", "on_overflow=skip"});
  INFO(skipped.err);
  CHECK(skipped.code == 0);
  CHECK(says(skipped.out, "Done: 4 steps (3 skipped: the gradient was not finite)"));
  // The losses of those weights are not finite either, and the run can be read all the same.
  CHECK(stagecraft::test::stagecraft({"report", folder.path("run")}).code == 0);
}

TEST_CASE("report of what is no run exits 2", "[train]") {
  const ScratchFolder folder;
  check_refused(stagecraft::test::stagecraft({"report", folder.path("none")}), 2, "no such run directory");
  check_refused(stagecraft::test::stagecraft({"report", folder.path("")}), 2, "plan.json: is missing");
}
