// Input that `train` cannot use: one message, exit code 2, and no rank left behind.

#include "base/json.h"
#include "test/cli/train_cases.h"
#include "test/support/catch.h"
#include "test/support/full.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace stagecraft::test {
namespace fs = std::filesystem;

TEST_CASE("a config that cannot be used exits 2 with one message", "[train_input]") {
  const ScratchFolder folder;
  const auto refused = [&](const char* pointer, const Json& value, const std::string& what) {
    Json config = tiny_run(folder);
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
          "/model: sequential of 1 gives [3] per sample, but cross_entropy needs [classes], 4 of them");
  refused("/profiler/micro_batch_sizes", Json{8, -1}, "/profiler/micro_batch_sizes");
  refused("/model/hidden", Json{std::int64_t{1} << 62}, "/model");
  refused("/pipeline/cuts", Json{9}, "cuts");
  refused("/pipeline/stages", 5, "stages");
  refused("/data", Json{{"type", "text"}, {"path", folder.path("none.txt")}}, "none.txt");
  refused("/data", Json{{"type", "idx"}, {"path", folder.path("none")}}, folder.path("none"));
  refused("/initial_checkpoint", folder.path("none"), folder.path("none"));
  fs::create_directories(folder.path("empty"));
  refused("/initial_checkpoint", folder.path("empty"),
          "/initial_checkpoint: " + folder.path("empty") + " has no file ");
  refused("/dtype", "bf16", R"(set "bf16": {"enabled": true})");
  refused("/dtype", "torch.float16", R"(set "fp16": {"enabled": true})");
  refused("/dtype", "fp64", R"(did you mean "float64"?)");
  check_refused(stagecraft({"train", folder.path("none.json")}), 2, "none.json");
  check_refused(stagecraft({"train"}), 2, "CONFIG is required");
}

TEST_CASE("a file or folder of another kind is called by what it is, wherever it is given", "[train_input]") {
  const ScratchFolder folder;
  Json config = tiny_run(folder);
  config["train_steps"] = 1;
  REQUIRE(train(folder, config).code == 0);
  const std::string run = folder.path("run");
  const std::string cluster = STAGECRAFT_TEST_DATA "/../../configs/clusters/one-machine-8-h100.json";
  const std::string hub = folder.write("hub.json", R"({"model_type": "llama", "vocab_size": 7})");
  const std::vector<std::pair<std::string, std::string>> given{
      {run + "/plan.json", "plan"},
      {run + "/profile.json", "profile"},
      {cluster, "cluster"},
      {run + "/timeline.json", "trace"},
      {run + "/summary.json", "run summary"},
      {run + "/checkpoints/step-00000001/manifest.json", "manifest"},
      {hub, "Hugging Face config"},
      {run + "/config.json", "run config"},
      {run, "run directory"},
      {run + "/checkpoints/step-00000001", "checkpoint"},
      {STAGECRAFT_TEST_DATA "/captured/tiny", "model folder"}};
  const std::string path = folder.write("run.json", config.dump());
  const std::string other = "run_dir=" + folder.path("other");
  const std::vector<std::string> common{"plan", "profile", "run directory", "model folder"};
  const std::vector<std::tuple<std::string, std::string, std::vector<std::string>>> readers{
      {"run config", "train", {"train", "@", "--dry-run"}},
      {"run config", "profile", {"profile", "@"}},
      {"run config", "plan", {"plan", "@"}},
      {"plan", "train --plan", {"train", path, "--dry-run", "--plan", "@"}},
      {"profile", "plan --profile", {"plan", "--profile", "@", "--cluster", cluster}},
      {"cluster", "plan --cluster", {"plan", "--profile", run + "/profile.json", "--cluster", "@"}},
      {"run directory", "report", {"report", "@"}},
      {"run directory", "replan", {"replan", "@", "--profile", run + "/profile.json", "--cluster", cluster}},
      {"checkpoint", "initial_checkpoint", {"train", path, "--set", other, "--set", "initial_checkpoint=@"}},
      {"model folder",
       "model.path",
       {"train", path, "--set", other, "--set", R"(model={"family": "captured", "path": "@"})"}}};
  int turn = 0;
  for (const auto& [wanted, reader, words] : readers) {
    for (const auto& [file, kind] : given) {
      // One reader has all kinds, the others in turn some of the common ones.
      const bool in_turn = full() || turn++ % 3 == 0;
      const bool tried = reader == "train" || (in_turn && std::ranges::find(common, kind) != common.end());
      if (kind == wanted || !tried) continue;
      CAPTURE(reader, kind);
      std::vector<std::string> line = words;
      for (std::string& word : line) {
        if (const std::size_t at = word.find('@'); at != std::string::npos) word.replace(at, 1, file);
      }
      const CommandResult result = stagecraft(line);
      CHECK(result.code == 2);
      CHECK(says(result.err, "is a " + kind));
      CHECK(std::ranges::count(result.err, '\n') == 1);
    }
  }
}

TEST_CASE("broken JSON is told by line, column and what was expected, whoever reads it", "[train_input]") {
  const ScratchFolder folder;
  Json config = tiny_run(folder);
  config["train_steps"] = 1;
  REQUIRE(train(folder, config).code == 0);
  const std::string run = folder.path("run"), profile = run + "/profile.json";
  const std::string cluster = STAGECRAFT_TEST_DATA "/../../configs/clusters/laptop.json";
  const std::string path = folder.write("whole.json", config.dump());
  const std::string other = "run_dir=" + folder.path("other");
  const std::string model = folder.path("model");
  fs::copy(STAGECRAFT_TEST_DATA "/captured/tiny", model);
  fs::copy(STAGECRAFT_TEST_DATA "/captured/tiny/graphs", model + "/graphs");
  const std::string broken = folder.path("broken.json");
  const std::string captured = fmt::format(R"(model={{"family": "captured", "path": "{}"}})", model);
  /// Where the file lies, and who reads it.
  const std::vector<std::pair<std::string, std::vector<std::string>>> readers{
      {broken, {"train", broken}},
      {broken, {"profile", broken}},
      {broken, {"plan", broken}},
      {broken, {"check-layers", broken}},
      {broken, {"train", path, "--set", other, "--plan", broken}},
      {broken, {"train", path, "--set", other, "--set", "pipeline={\"plan\": \"" + broken + "\"}"}},
      {broken, {"train", path, "--set", other, "--set", "cluster=" + broken}},
      {broken, {"plan", "--profile", broken, "--cluster", cluster}},
      {broken, {"plan", "--profile", profile, "--cluster", broken}},
      {broken, {"compare", "--profile", broken, "--cluster", cluster}},
      {broken, {"explain", "--profile", profile, "--cluster", broken}},
      {broken, {"replan", run, "--profile", broken, "--cluster", cluster}},
      {broken, {"replan", run, "--profile", profile, "--cluster", broken}},
      {broken, {"optimize-pipedream", "--profile", profile, "--cluster", broken}},
      {broken, {"check", broken}},
      {broken, {"simulate", broken}},
      {broken, {"convert", broken}},
      {broken, {"compare", broken}},
      {broken, {"convert", run + "/plan.json", "--to", "megatron", "--profile", broken}},
      {model + "/manifest.json", {"train", path, "--set", other, "--set", captured}},
      {run + "/summary.json", {"report", run}},
      {run + "/timeline.json", {"report", run}},
      {run + "/plan.json", {"report", run}},
      {run + "/checkpoints/step-00000001/manifest.json", {"train", path, "--resume"}},
  };
  const std::vector<std::pair<std::string, std::string>> slips{
      {"{\n  \"stages\": 2,\n}\n",
       "line 3, column 1: found \"}\" behind a comma; expected a key in double quotes: is the comma one too "
       "many?"},
      {"{\n  \"stages\": [2\n}\n",
       "line 3, column 1: found \"}\"; expected \",\" or \"]\", as \"[\" at line 2, column 13 was begun"},
      {"{\n  \"stages\": 2  # two\n}\n",
       "line 2, column 16: found \"#\"; expected a comment to begin with \"//\""},
      {"{\"stages\": NaN}",
       "line 1, column 12: found \"NaN\"; expected the value of \"stages\": JSON has finite numbers"},
      {"{\"stages\": 2", "line 1, column 13: found the end of the text; expected \",\" or \"}\""},
      {std::string("{\x00\x01", 3), "line 1, column 2: found the byte 0x00; expected a key"},
      {"", "empty"},
      {"\n", "empty"},
  };
  // All read by one parser: of each reader one of the slips or two, so that each slip is met by several.
  for (std::size_t reader = 0; reader < readers.size(); ++reader) {
    const auto& [file, words] = readers[reader];
    const std::string before = fs::exists(file) ? read_text_file(file) : "";
    for (const std::size_t slip : {reader % slips.size(), (reader + 3) % slips.size()}) {
      if (slip != reader % slips.size() && !full()) continue;
      const auto& [text, said] = slips[slip];
      CAPTURE(words, file, text);
      std::ofstream(file, std::ios::binary) << text;
      const CommandResult result = stagecraft(words);
      INFO(result.err);
      CHECK(result.code == 2);
      CHECK(says(result.err,
                 file + ": " + (said == "empty" ? "is empty; expected a" : "not valid JSON: " + said)));
      CHECK_FALSE(says(result.err, "exception"));
      CHECK(std::ranges::count(result.err, '\n') == 1);
    }
    std::ofstream(file, std::ios::binary) << before;
  }
}

TEST_CASE("a path that is not there is named with its key, in full, and where it lies beside the config",
          "[train_input]") {
  const ScratchFolder folder;
  Json config = tiny_run(folder);
  fs::create_directories(folder.path("there/data"));
  folder.write("there/data/words.txt", "words");
  const auto refused = [&](const std::string& key, const std::string& value) {
    Json other = config;
    other[Json::json_pointer(key)] = value;
    folder.write("there/run.json", other.dump());
    return shell(folder, fmt::format("cd {} && {{}} train there/run.json", folder.path("")));
  };
  config["data"] = {{"type", "text"}, {"sequence", 2}};
  check_refused(
      refused("/data/path", "data/words.txt"), 2,
      "there/run.json: /data/path: data/words.txt: no such file or folder (" + folder.path("data/words.txt"));
  CHECK(says(refused("/data/path", "data/words.txt").err, "there/data/words.txt lies beside the config"));
  config = tiny_run(folder);
  for (const char* key : {"/initial_checkpoint", "/pipeline/plan", "/cluster"}) {
    if (std::string(key) == "/pipeline/plan") config["pipeline"] = Json::object();
    check_refused(refused(key, "data/none"), 2,
                  fmt::format("there/run.json: {}: data/none: no such file", key));
  }
}

TEST_CASE("a config for GPUs is refused by every verb that computes, where there is none", "[train_input]") {
  const ScratchFolder folder;
  Json config = tiny_run(folder);
  config["device"] = "cuda";
  const std::string path = folder.write("run.json", config.dump());
  const std::string what = "run.json: /device: \"cuda\" asked for, but ";
  if (!says(stagecraft({"train", path, "--dry-run"}).err, what)) return;  // there is one
  const std::vector<std::vector<std::string>> lines{{"train", path},
                                                    {"profile", path},
                                                    {"profile", path, "--links"},
                                                    {"plan", path},
                                                    {"explain", path},
                                                    {"compare", path},
                                                    {"check", path},
                                                    {"simulate", path},
                                                    {"convert", path},
                                                    {"check-layers", path},
                                                    {"train", path, "--print-config"}};
  for (const std::vector<std::string>& line : lines) {
    INFO(fmt::format("{}", fmt::join(line, " ")));
    const CommandResult refused = stagecraft(line);
    check_refused(refused, 2, what);
    CHECK(refused.out.empty());
  }
  CHECK(stagecraft({"check-layers", path, "--set", "device=cpu"}).code == 0);
  const CommandResult tried = stagecraft({"check-layers", path, "--set", "device=cpu", "--json"});
  CHECK(Json::parse(tried.out).at("device") == "cpu");
}

TEST_CASE("a key for GPUs is refused without them before MPI starts", "[train_input]") {
  const ScratchFolder folder;
  const std::string path = folder.write("run.json", tiny_run(folder).dump());
  const CommandResult refused = stagecraft({"train", path, "--set", "comms.backend=nccl"});
  check_refused(refused, 2, "run.json with --set: /comms/backend: nccl moves tensors between GPUs");
  CHECK_FALSE(says(refused.err, "MPI_ABORT"));
}

TEST_CASE("torchrun's processes are told how Python starts them, and train no copies", "[train_input]") {
  const ScratchFolder folder;
  const std::string path = folder.write("run.json", tiny_run(folder).dump());
  for (const char* verb : {"train", "profile"}) {
    CAPTURE(verb);
    const auto rank = [&](int number) {
      return shell(folder,
                   fmt::format("WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 RANK={} {{}} {} {}", number, verb, path));
    };
    const CommandResult first = rank(0), second = rank(1);
    CHECK(first.code == 2);
    CHECK(says(first.err, "2 processes were launched (WORLD_SIZE=2)"));
    CHECK(says(first.err, fmt::format("`torchrun --nproc-per-node 2 -m stagecraft {} ...`", verb)));
    CHECK(second.code == 2);
    CHECK(second.out + second.err == "");
    CHECK_FALSE(std::filesystem::exists(folder.path("run")));
  }
  // One process is alone, whoever started it.
  CHECK(shell(folder, fmt::format("WORLD_SIZE=1 RANK=0 {{}} train {}", path)).code == 0);
}

TEST_CASE("a micro-batch too small for a layer is refused at the start, wherever in the epoch it comes",
          "[train_input]") {
  const ScratchFolder folder;
  Json config = tiny_run(folder);
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

TEST_CASE("truncated data exits 2 and names the file", "[train_input]") {
  const ScratchFolder folder;
  const std::string from = STAGECRAFT_TEST_DATA "/fashion";
  for (const auto& entry : fs::recursive_directory_iterator(from)) {
    if (!entry.is_regular_file()) continue;
    const std::string name = entry.path().filename();
    std::string bytes = read_text_file(entry.path());
    if (says(name, "train-images")) bytes.resize(bytes.size() / 2);
    folder.write(name, bytes);
  }
  Json config = tiny_run(folder);
  config["data"] = {{"type", "idx"}, {"path", folder.path("")}};
  config["train_batch_size"] = 8;
  const CommandResult result = train(folder, config);
  check_refused(result, 2, "train-images");
}

TEST_CASE("labels and tokens beyond the model exit 2 before the first step, with file and sample",
          "[train_input]") {
  const ScratchFolder folder;
  Json config = tiny_run(folder);
  std::string labels(8, '\0');
  for (std::size_t row = 0; row < 8; ++row) labels[row] = static_cast<char>(row == 6 ? 5 : row % 3);
  const auto npy = [&](const std::string& name, const std::string& type, const std::string& shape,
                       const std::string& bytes) {
    std::string header =
        fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}", type, shape);
    header.resize(117, ' ');
    folder.write(name, std::string("\x93NUMPY\x01\x00\x76\x00", 10) + header + "\n" + bytes);
  };
  fs::create_directories(folder.path("rows"));
  npy("rows/targets.npy", "|u1", "8,", labels);
  npy("rows/inputs.npy", "<f4", "8, 2", std::string(64, '\0'));
  config["data"] = {{"type", "arrays"}, {"path", folder.path("rows")}, {"classes", 3}};
  config["train_batch_size"] = 4;
  config["train_micro_batch_size_per_gpu"] = 2;
  check_refused(train(folder, config), 2,
                "/data/path: " + folder.path("rows/targets.npy") + ": sample 6 has 5 in its targets");
  CHECK_FALSE(fs::exists(folder.path("run") + "/metrics.jsonl"));
  config["data"]["classes"] = 0;  // as many as there are
  CHECK(train(folder, config).code == 0);
}

TEST_CASE("rows of several documents are refused to a model that would not keep them apart",
          "[train_input]") {
  const ScratchFolder folder;
  Json config = tiny_run(folder);
  folder.write("tokens.bin", std::string(128, '\1'));
  config["model"] = {{"family", "gpt"}, {"blocks", 1}, {"width", 8}, {"heads", 2}};
  config["data"] = {{"type", "tokens"},  {"path", folder.path("tokens.bin")}, {"sequence", 4},
                    {"vocabulary", 300}, {"documents", "separated"},          {"separator", 2}};
  config["train_batch_size"] = 4;
  config["train_micro_batch_size_per_gpu"] = 2;
  check_refused(train(folder, config), 2, "does not read the field \"position_ids\"");
}

TEST_CASE("a run directory in use, of another run, or not writable exits 2", "[train_input]") {
  const ScratchFolder folder;
  Json config = tiny_run(folder);
  REQUIRE(train(folder, config).code == 0);
  check_refused(train(folder, config), 2, "--resume");
  config["run_dir"] = "/proc/stagecraft";
  check_refused(train(folder, config), 2, "/run_dir: /proc/stagecraft");
  config["run_dir"] = folder.path("locked");
  fs::create_directories(folder.path("locked"));
  const CommandResult locked =
      shell(folder, fmt::format("flock {0}/.lock {{}} train {1}", folder.path("locked"),
                                folder.write("run.json", config.dump())));
  check_refused(locked, 2, "is in use by another run");
}

TEST_CASE("a plan of another model, size or precision exits 2", "[train_input]") {
  const ScratchFolder folder;
  Json config = tiny_run(folder);
  REQUIRE(train(folder, config).code == 0);
  const Json plan = json::parse_file(folder.path("run") + "/plan.json");
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
  config["pipeline"] = {{"schedule", "zb_h1"}};
  check_refused(with("model", "x"), 2,
                "/pipeline/schedule: zb_h1, but " + folder.path("plan.json") + " has 1f1b");
}

TEST_CASE("launcher variables that MPI does not confirm exit 2 with one message", "[train_input]") {
  const ScratchFolder folder;
  const std::string config = folder.write("run.json", tiny_run(folder).dump());
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

}  // namespace stagecraft::test
