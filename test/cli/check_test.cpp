#include "schedules/base/json.h"
#include "test/cli/sample_plan.h"
#include "test/support/catch.h"
#include "test/support/command.h"

using stagecraft::Json;
using stagecraft::test::changed_plan;
using stagecraft::test::CommandResult;
using stagecraft::test::kPlan;
using stagecraft::test::ScratchFolder;

namespace {

CommandResult check(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "check");
  return stagecraft::test::stagecraft(arguments);
}

using stagecraft::test::says;

const char* const kGoodSchedule = R"(# two stages, two micro-batches
stagecraft program 1
stages 0 1
groups 2
rank 0: L0 F0 L1 F1 B0 B1 S0 P0
rank 1: L0 F0 B0 L1 F1 P0 B1 S0
)";

// Rank 1 wants micro-batch 1 first, whose forward waits on rank 0 for the backward of micro-batch 0.
const char* const kDeadlock = R"(stagecraft program 1
stages 0 1
groups 2
rank 0: L0 F0 B0 L1 F1 B1 S0 P0
rank 1: L1 F1 B1 L0 F0 P0 B0 S0
)";

}  // namespace

TEST_CASE("check prints what it proved of a plan", "[check]") {
  const CommandResult result = check({kPlan});
  CHECK(result.code == 0);
  CHECK(result.err.empty());
  CHECK(says(result.out, "1f1b, 4 stages on 4 ranks, 8 micro-batches a step"));
  CHECK(says(result.out, "Accepted"));
  CHECK(says(result.out, "in flight"));
  CHECK(says(result.out, "the least that works is 3"));
  CHECK(says(result.out, "Peak memory"));
}

TEST_CASE("a small plan of very many actions is refused before they are made", "[check]") {
  const ScratchFolder folder;
  const std::string plan = changed_plan(folder, [](Json& json) {
    json["micro_batches"] = 1'000'000;
    const Json last = json["stages"].back();
    for (int s = static_cast<int>(json["stages"].size()); s < 64; ++s) {
      Json stage = last;
      stage["first_layer"] = json["stages"].back()["last_layer"];
      stage["last_layer"] = stage["first_layer"].get<int>() + 1;
      stage["ranks"] = {s};
      json["stages"].push_back(stage);
    }
    for (const char* key : {"costs", "predicted"}) json.erase(key);
  });
  for (const char* verb : {"check", "convert"}) {
    INFO(verb);
    const CommandResult result = stagecraft::test::stagecraft({verb, plan});
    CHECK(result.code == 2);
    CHECK(says(result.err, "64 stages and 1000000 micro-batches make at least 128000000 actions"));
  }
  CHECK(check({plan, "--micro-batches", "4"}).code == 0);
}

TEST_CASE("check --json prints one document with in-flight, versions, slots and memory", "[check]") {
  const CommandResult result = check({kPlan, "--json"});
  REQUIRE(result.code == 0);
  const Json json = Json::parse(result.out);
  CHECK(json["accepted"] == true);
  CHECK(json["least_slots_per_channel"] == 3);
  REQUIRE(json["proof"].size() == 4);
  REQUIRE(json["memory"].size() == 4);
  for (int s = 0; s < 4; ++s) {
    CHECK(json["proof"][static_cast<std::size_t>(s)]["in_flight"] == 4 - s);  // 1F1B keeps p - s
    CHECK(json["memory"][static_cast<std::size_t>(s)]["peak_bytes"] > 16'000'000);
  }
}

TEST_CASE("check takes other micro-batches and slots", "[check]") {
  CHECK(Json::parse(check({kPlan, "--json", "--micro-batches", "2"}).out)["proof"][0]["in_flight"] == 2);
  CHECK(Json::parse(check({kPlan, "--json", "--slots", "5"}).out)["slots_per_channel"] == 5);
  const CommandResult few = check({kPlan, "--slots", "1"});
  CHECK(few.code == 3);
  CHECK(few.out.empty());
  CHECK(says(few.err, "slots"));
  CHECK(says(few.err, "--slots 3 is the least that works"));
  const Json refused = Json::parse(check({kPlan, "--slots", "1", "--json"}).out);
  CHECK(refused["accepted"] == false);
  CHECK(refused["least_slots_per_channel"] == 3);
  REQUIRE(refused["findings"].size() == 1);
  CHECK(refused["findings"][0]["kind"] == "buffers");
  CHECK(says(refused["findings"][0]["message"], "slots_per_channel is 1, but rank 1 reads"));
}

TEST_CASE("check shows the staleness of an asynchronous plan", "[check]") {
  const ScratchFolder folder;
  const std::string plan = changed_plan(folder, [](Json& p) {
    p["schedule"]["name"] = "pipedream";
    p["micro_batches"] = 1;
  });
  const CommandResult result = check({plan, "--json"});
  REQUIRE(result.code == 0);
  const Json json = Json::parse(result.out);
  for (int s = 0; s < 4; ++s) {
    CHECK(json["proof"][static_cast<std::size_t>(s)]["staleness_max"] == 3 - s);
    CHECK(json["proof"][static_cast<std::size_t>(s)]["versions"] == 4 - s);
  }
}

TEST_CASE("check refuses a plan that does not fit, rank by rank", "[check]") {
  const ScratchFolder folder;
  const std::string plan = changed_plan(folder, [](Json& p) { p["capacity_bytes"] = 20'000'000; });
  const CommandResult result = check({plan});
  CHECK(result.code == 3);
  CHECK(result.out.empty());
  CHECK(says(result.err, "memory: rank 0"));
  CHECK(says(result.err, "memory: rank 2"));
  CHECK_FALSE(says(result.err, "memory: rank 3"));
  const CommandResult as_json = check({plan, "--json"});
  CHECK(as_json.code == 3);
  const Json json = Json::parse(as_json.out);
  CHECK(json["accepted"] == false);
  CHECK(json["findings"].size() == 3);
}

TEST_CASE("check reads a schedule people wrote, as text and as JSON", "[check]") {
  const ScratchFolder folder;
  const CommandResult text = check({folder.write("mine.schedule", kGoodSchedule)});
  CHECK(text.code == 0);
  CHECK(says(text.out, "custom, 2 stages on 2 ranks, 2 micro-batches a step"));
  CHECK(says(text.out, "No memory table"));
  const CommandResult json = check({folder.write("mine.json", R"({
    "stages": [[0]], "group_sizes": [1],
    "ranks": [[{"op": "load", "stage": 0, "micro_batch": 0}, {"op": "forward", "stage": 0, "micro_batch": 0},
               {"op": "backward", "stage": 0, "micro_batch": 0}, {"op": "step", "stage": 0, "group": 0},
               {"op": "report_loss", "stage": 0, "group": 0}]]})")});
  INFO(json.err);
  CHECK(json.code == 0);
  CHECK(says(json.out, "custom, 1 stage on 1 rank, 1 micro-batch a step"));
}

TEST_CASE("check names the cycle of a schedule that deadlocks", "[check]") {
  const ScratchFolder folder;
  const std::string file = folder.write("crossed.schedule", kDeadlock);
  const CommandResult result = check({file});
  CHECK(result.code == 3);
  CHECK(result.out.empty());
  CHECK(result.err.find("stagecraft: " + file + ": ") == 0);
  CHECK(says(result.err, "deadlock"));
  CHECK(says(result.err, "rank 0 waits at ["));
  CHECK(says(result.err, "rank 1 waits at ["));
  const CommandResult as_json = check({file, "--json"});
  CHECK(as_json.code == 3);
  const Json json = Json::parse(as_json.out);
  CHECK(json["least_slots_per_channel"].is_null());
  // What else is wrong is said too, also to those who ask for too few slots.
  for (const Json& refused : {json, Json::parse(check({file, "--json", "--slots", "1"}).out)}) {
    REQUIRE(refused["findings"].size() == 3);
    CHECK(refused["findings"][0]["kind"] == "completeness");
    CHECK(says(refused["findings"][0]["message"], "go in micro-batch order"));
    const Json& deadlock = refused["findings"][2];
    CHECK(deadlock["kind"] == "deadlock");
    CHECK(says(deadlock["message"], "no number of receive slots helps"));
    CHECK(deadlock["cycle"].size() == 2);
  }
}

TEST_CASE("check --repair writes what it put right, and says so", "[check]") {
  const ScratchFolder folder;
  std::string schedule = kGoodSchedule;
  schedule.replace(schedule.find("L1 F1 B0"), 8, "F1 B0");
  const std::string file = folder.write("short.schedule", schedule);
  CHECK(check({file}).code == 3);
  const std::string out = folder.path("whole.schedule");
  const CommandResult result = check({file, "--repair", out});
  INFO(result.err);
  CHECK(result.code == 0);
  CHECK(
      says(result.out, "repaired: rank 0: the load of micro-batch 1 on stage 0 is added before its forward"));
  CHECK(says(result.out, "Accepted"));
  CHECK(check({out}).code == 0);
  const CommandResult circle = check({folder.write("crossed.schedule", kDeadlock), "--repair", out});
  CHECK(circle.code == 3);
  CHECK(says(circle.err, "cannot be repaired: the order of computation itself waits in a circle"));
  CHECK(check({kPlan, "--repair", out}).code == 2);
}

TEST_CASE("check proves under the rules of a transport", "[check]") {
  const CommandResult nccl = check({kPlan, "--transport", "nccl"});
  CHECK(nccl.code == 0);
  CHECK(says(nccl.out, "launch order"));
  CHECK(check({kPlan, "--transport", "eager:4096:65536"}).code == 0);
  const CommandResult pair = check({kPlan, "--transport", "nccl,pair"});
  CHECK(pair.code == 3);
  CHECK(says(pair.err, "launch operations on their channel in two orders"));
  const CommandResult wrong = check({kPlan, "--transport", "ncll"});
  CHECK(wrong.code == 2);
  CHECK(says(wrong.err, "did you mean \"nccl\"?"));
  const ScratchFolder folder;
  const CommandResult sizes =
      check({folder.write("mine.schedule", kGoodSchedule), "--transport", "eager:100"});
  CHECK(sizes.code == 2);
  CHECK(says(sizes.err, "no costs to take message sizes from"));
}

TEST_CASE("check shows the least slots channel by channel", "[check]") {
  const Json json = Json::parse(check({kPlan, "--json"}).out);
  CHECK(json["least_slots"]["exact"] == true);
  int total = 0;
  for (const Json& channel : json["channels"]) {
    total += channel["least"].get<int>();
    CHECK(channel["slots"] >= channel["least"]);
    // 1F1B over four stages: rank r reads 4 - r activations at once, and one gradient.
    if (channel["payload"] == "activation") CHECK(channel["least"] == 4 - channel["rank"].get<int>());
    if (channel["payload"] == "gradient") CHECK(channel["least"] == 1);
  }
  CHECK(json["least_slots"]["total"] == total);
}

TEST_CASE("check refuses a schedule that is not complete", "[check]") {
  const ScratchFolder folder;
  std::string schedule = kGoodSchedule;
  schedule.replace(schedule.find("B0 B1 S0"), 8, "B0 S0");
  const CommandResult result = check({folder.write("short.schedule", schedule)});
  CHECK(result.code == 3);
  CHECK(says(result.err, "micro-batch 1"));
}

TEST_CASE("check tells files it cannot use apart", "[check]") {
  const ScratchFolder folder;
  const auto refusal = [&](const std::string& name, const std::string& contents,
                           const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments{folder.write(name, contents)};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const CommandResult result = check(arguments);
    CHECK(result.code == 2);
    CHECK(result.out.empty());
    CHECK(result.err.find("stagecraft: " + folder.path(name) + ": ") == 0);
    return result.err;
  };
  CHECK(says(refusal("empty.json", ""), "is empty"));
  CHECK(says(refusal("words.txt", "hello world"), "is neither a plan (JSON) nor a schedule"));
  CHECK(says(refusal("cut.json", R"({"stages": [)"), "not valid JSON"));
  CHECK(says(refusal("array.json", "[1, 2]"), "a JSON object"));
  CHECK(says(refusal("other.json", R"({"a": 1})"), "is neither a plan (stages"));
  CHECK(says(refusal("profile.json", R"({"measurements": []})"), "is a profile"));
  CHECK(says(refusal("cluster.json", R"({"levels": []})"), "is a cluster"));
  CHECK(says(refusal("trace.json", R"({"traceEvents": []})"), "is a trace"));
  CHECK(says(refusal("mine.schedule", kGoodSchedule, {"--micro-batches", "4"}), "are for plans"));
  CHECK(says(refusal("typo.schedule", "stagecraft program 1\nstags 0 1\n"), "line 2"));
  const std::string plan = stagecraft::test::read_text_file(kPlan);
  CHECK(says(refusal("key.json", "{\"stagess\": 1," + plan.substr(1)), "did you mean \"stages\"?"));
  CHECK(says(check({folder.path("nowhere.json")}).err, "No such file"));
  CHECK(says(check({folder.path("")}).err, "is a folder"));
}
