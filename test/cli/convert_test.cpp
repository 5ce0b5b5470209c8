#include "base/json.h"
#include "test/cli/sample_plan.h"
#include "test/support/catch.h"
#include "test/support/command.h"

#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

using stagecraft::Json;
using stagecraft::test::changed_plan;
using stagecraft::test::CommandResult;
using stagecraft::test::kPlan;
using stagecraft::test::read_text_file;
using stagecraft::test::says;
using stagecraft::test::ScratchFolder;

namespace {

CommandResult run(const char* verb, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), verb);
  return stagecraft::test::stagecraft(arguments);
}

const std::string kPytorch = STAGECRAFT_TEST_DATA "/pytorch/";

const char* const kText =
    "stagecraft program 1\nschedule custom\nkind train\nstages 0 1\ngroups 2\n"
    "rank 0: L0 F0 L1 F1 B0 B1 S0 P0\nrank 1: L0 F0 B0 L1 F1 P0 B1 S0\n";

}  // namespace

TEST_CASE("no verb writes over a run's records", "[convert]") {
  const ScratchFolder folder;
  const std::string text = folder.write("a.txt", kText);
  std::filesystem::create_directories(folder.path("run/checkpoints/step-00000001"));
  std::filesystem::create_directory_symlink(folder.path("run"), folder.path("link"));
  for (const char* name : {"run/.lock", "run/metrics.jsonl", "run/config.json"}) folder.write(name, "kept");
  const std::vector<std::vector<std::string>> commands{
      {"convert", text, "-o"}, {"simulate", kPlan, "--svg"}, {"simulate", kPlan, "--trace"}};
  for (std::vector<std::string> command : commands) {
    for (const char* name : {"run/metrics.jsonl", "run/config.json", "run/summary.json", "link/metrics.jsonl",
                             "run/checkpoints/step-00000001/manifest.json", "run/../run/.lock"}) {
      command.resize(3);
      command.push_back(folder.path(name));
      INFO(command.front() << " " << name);
      const CommandResult result = stagecraft::test::stagecraft(command);
      CHECK(result.code == 2);
      CHECK(says(result.err, "is a record of the run in "));
    }
  }
  for (const char* name : {"run/.lock", "run/metrics.jsonl", "run/config.json"})
    CHECK(read_text_file(folder.path(name)) == "kept");
  CHECK_FALSE(std::filesystem::exists(folder.path("run/summary.json")));
  CHECK(run("convert", {text, "-o", folder.path("run/picture.txt")}).code == 0);
  CHECK(run("convert", {text, "-o", folder.path("config.json")}).code == 0);  // of no run
}

TEST_CASE("no output takes the place of a file of another kind, or of the one that is read", "[convert]") {
  const ScratchFolder folder;
  const std::string text = folder.write("a.txt", kText),
                    plan = folder.write("plan.json", read_text_file(kPlan));
  const std::string profile = STAGECRAFT_TEST_DATA "/profiles/gpt_10_layers.json";
  // A file that each output of each verb made, and, by name, files that it must leave alone.
  const std::vector<std::vector<std::string>> commands{
      {"convert", text, "-o"},
      {"convert", text, "--to", "csv", "-o"},
      {"convert", text, "--to", "json", "-o"},
      {"check", text, "--repair"},
      {"simulate", plan, "--svg"},
      {"simulate", plan, "--trace"},
      {"plan", "--profile", profile, "--micro-batch-size", "4", "--micro-batches", "4", "--cluster",
       STAGECRAFT_TEST_DATA "/../../configs/clusters/laptop.json", "-o"},
      {"completion", "bash", "-o"},
  };
  std::map<std::string, std::string> there{{"notes.md", "# to do"},
                                           {"weights.bin", std::string("\1\0\2", 3)},
                                           {"run.json", R"({"data": {}, "optimizer": {}})"},
                                           {"other.json", R"({"mine": 1})"},
                                           {"profile.json", read_text_file(profile)},
                                           {"table.csv", "name,age\nx,3\n"},
                                           {".bashrc", "# ~/.bashrc\nexport A=1\n"}};
  std::map<std::string, std::string> kinds;  // of what the commands made
  for (std::size_t i = 0; i < commands.size(); ++i) {
    std::vector<std::string> command = commands[i];
    const std::string name = "made" + std::to_string(i);
    command.push_back(folder.path(name));
    const CommandResult result = stagecraft::test::stagecraft(command);
    INFO(result.err);
    REQUIRE(result.code == 0);
    CHECK(stagecraft::test::stagecraft(command).code == 0);  // again, over what it made
    there[name] = read_text_file(folder.path(name));
    kinds[name] = i < 4 ? "schedule" : std::to_string(i);
  }
  for (std::size_t i = 0; i < commands.size(); ++i) {
    for (const auto& [name, contents] : there) {
      if (kinds[name] == kinds["made" + std::to_string(i)]) continue;
      const std::string path = folder.write(name, contents);
      std::vector<std::string> command = commands[i];
      command.push_back(path);
      INFO(command.front() << " " << i << " over " << name);
      const CommandResult result = stagecraft::test::stagecraft(command);
      CHECK(result.code == 2);
      CHECK(says(result.err, path + ": is there already, and is "));
      CHECK(read_text_file(path) == contents);
    }
  }
  std::filesystem::create_hard_link(text, folder.path("same"));
  std::filesystem::create_directory(folder.path("sub"));
  for (const std::string& own : {text, folder.path("same"), folder.path("sub/../a.txt")}) {
    for (const std::size_t i : {0U, 1U, 2U, 3U}) {
      std::vector<std::string> command = commands[i];
      command.push_back(own);
      CHECK(says(stagecraft::test::stagecraft(command).err, own + ": is the file that is read"));
    }
  }
  CHECK(read_text_file(text) == kText);
  CHECK(run("simulate", {plan, "--svg", folder.write("empty", "")}).code == 0);
  const CommandResult twice = run("simulate", {plan, "--svg", folder.path("x"), "--trace", folder.path("x")});
  CHECK(twice.code == 2);
}

TEST_CASE("convert leaves PyTorch's files as they are", "[convert]") {
  const ScratchFolder folder;
  for (const char* name : {"DualPipeV-p2-m4-v2.csv", "DualPipeV-p2-m4-v2-comms.csv", "1F1B-p4-m5-v1.csv"}) {
    INFO(name);
    const std::string out = folder.path("out.csv");
    REQUIRE(run("convert", {kPytorch + name, "-o", out}).code == 0);
    CHECK(read_text_file(out) == read_text_file(kPytorch + name));
  }
}

TEST_CASE("check judges the transfers of the file, not others that would do", "[convert]") {
  const ScratchFolder folder;
  // Each rank sends before it posts what the other sends.
  const std::string crossed = folder.write("crossed.csv",
                                           "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
                                           "1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1\n");
  const CommandResult result = run("check", {crossed, "--json"});
  CHECK(result.code == 3);
  const Json json = Json::parse(result.out);
  REQUIRE(json["findings"].size() == 1);
  CHECK(json["findings"][0]["kind"] == "deadlock");
  CHECK(json["findings"][0]["cycle"].size() == 2);
  CHECK(run("check", {folder.write("compute.csv", run("convert", {crossed, "--to", "csv"}).out)}).code == 0);
}

namespace {

/// A decoder of eight blocks.
std::string decoder_profile(const ScratchFolder& folder) {
  std::vector<std::string> names{"embedding"};
  for (int i = 0; i < 8; ++i) names.push_back("h." + std::to_string(i));
  names.insert(names.end(), {"head"});
  Json layers = Json::array();
  for (const std::string& name : names) {
    layers.push_back({{"name", name},
                      {"forward", {{"median_ms", 1}}},
                      {"backward_input", {{"median_ms", 1}}},
                      {"backward_weight", {{"median_ms", 1}}},
                      {"parameter_bytes", 4},
                      {"output_bytes", name == "head" ? 0 : 64}});
  }
  const Json profile{
      {"model", "toy"},
      {"optimizer_bytes_per_parameter_byte", 2},
      {"measurements",
       {{{"micro_batch", 4}, {"input_bytes", 64}, {"targets_bytes", 64}, {"layers", layers}}}}};
  return folder.write("profile.json", profile.dump());
}

}  // namespace

TEST_CASE("a plan's cuts for Megatron-LM and torchtitan", "[convert]") {
  const ScratchFolder folder;
  const std::string profile = decoder_profile(folder);
  CommandResult result = run("convert", {kPlan, "--to", "megatron", "--profile", profile});
  CHECK(result.code == 0);
  CHECK(result.out == "Ett|tt|tttt|L\n");
  result =
      run("convert", {kPlan, "--to", "torchtitan", "--profile", profile, "-o", folder.path("parts.json")});
  CHECK(result.code == 0);
  CHECK(Json::parse(read_text_file(folder.path("parts.json")))[3] == Json::array({"norm", "lm_head"}));
  const std::string text = folder.write("a.txt", kText);
  for (const auto& [arguments, expected] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{kPlan, "--to", "megatron"}, "convert: --to megatron needs --profile"},
           {{kPlan, "--to", "csv", "--profile", profile}, "convert: --profile is for --to megatron"},
           {{text, "--to", "torchtitan", "--profile", profile}, "a.txt: is a schedule; which layers"},
           {{kPlan, "--to", "megatron", "--profile", folder.path("none")}, "none"},
       }) {
    result = run("convert", arguments);
    INFO(result.err);
    CHECK(result.code == 2);
    CHECK(says(result.err, expected));
  }
}

TEST_CASE("of equal replicas PyTorch's CSV has one pipeline", "[convert]") {
  const ScratchFolder folder;
  const std::string twice = changed_plan(folder, [](Json& plan) {
    for (int s = 0; s < 4; ++s) plan["stages"][s]["ranks"] = {2 * s, 2 * s + 1};
    plan["costs"]["network"]["levels"][0]["count"] = 8;
  });
  for (const char* form : {"csv", "csv-comms"}) {
    const CommandResult one = run("convert", {kPlan, "--to", form, "--micro-batches", "4"});
    const CommandResult of_two = run("convert", {twice, "--to", form});
    INFO(of_two.err);
    CHECK(of_two.code == 0);
    CHECK(one.out == of_two.out);
    CHECK(says(of_two.err, "the schedule of one of 2 equal pipelines, each with 4 micro-batches per step"));
  }
  CommandResult result = run("convert", {twice, "--to", "csv", "--micro-batches", "5"});
  CHECK(result.code == 2);
  CHECK(says(result.err, "5 micro-batches per step are not the same number for each of 2"));
  const std::string unequal = changed_plan(folder, [](Json& plan) {
    plan["stages"][3]["ranks"] = {3, 4};
    plan["costs"]["network"]["levels"][0]["count"] = 5;
  });
  result = run("convert", {unequal, "--to", "csv"});
  CHECK(result.code != 0);
  CHECK(says(result.err, "replicas"));
}
