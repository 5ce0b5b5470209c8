// `compare`: schedules and sizes to plan with, and one plan under several schedules.

#include "stagecraft/base/json.h"
#include "test/cli/sample_plan.h"
#include "test/support/catch.h"
#include "test/support/command.h"

#include <algorithm>
#include <set>

using stagecraft::Json;
using stagecraft::test::changed_plan;
using stagecraft::test::CommandResult;
using stagecraft::test::even_costs;
using stagecraft::test::says;
using stagecraft::test::ScratchFolder;

namespace {

/// Of the sample profile, with one device per stage.
CommandResult planned(const std::vector<std::string>& more) {
  std::vector<std::string> arguments{"compare",
                                     "--profile",
                                     STAGECRAFT_TEST_DATA "/profiles/gpt_10_layers.json",
                                     "--cluster",
                                     STAGECRAFT_TEST_DATA "/../../configs/clusters/one-machine-4-pcie.json",
                                     "--no-replicate"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return stagecraft::test::stagecraft(arguments);
}

Json compared(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "compare");
  arguments.emplace_back("--json");
  const CommandResult result = stagecraft::test::stagecraft(arguments);
  INFO(result.err);
  REQUIRE(result.code == 0);
  return Json::parse(result.out);
}

}  // namespace

TEST_CASE("compare takes the fastest of several schedules, --pareto shows time against memory", "[compare]") {
  const ScratchFolder folder;
  const std::string path = folder.path("plan.json");
  const CommandResult several = planned({"--micro-batch-size", "8", "--schedules", "1f1b,zb_h1", "-o", path});
  INFO(several.err);
  REQUIRE(several.code == 0);
  CHECK(stagecraft::json::parse_file(path)["schedule"]["name"] == "zb_h1");
  CHECK(stagecraft::test::stagecraft({"check", path}).code == 0);

  const CommandResult front =
      planned({"--pareto", "--schedules", "1f1b,fill_drain", "--batch", "64", "--json"});
  INFO(front.err);
  REQUIRE(front.code == 0);
  const Json choices = Json::parse(front.out)["choices"];
  REQUIRE(choices.size() > 1);
  for (std::size_t i = 1; i < choices.size(); ++i) {
    CHECK(choices[i]["step_ms"] > choices[i - 1]["step_ms"]);
    CHECK(choices[i]["memory_bytes"] < choices[i - 1]["memory_bytes"]);
    CHECK(choices[i]["micro_batches"].get<int>() * choices[i]["micro_batch_size"].get<int>() == 64);
  }
  CHECK(Json::parse(front.out)["cap_step"] == 0.01);
  std::set<std::string> recomputed;
  for (const Json& choice : choices) recomputed.insert(choice["recompute"].get<std::string>());
  CHECK(recomputed.contains("none"));
  CHECK(recomputed.size() > 1);
  const CommandResult kept = planned(
      {"--pareto", "--schedules", "1f1b", "--micro-batch-size", "8", "--recompute", "none", "--json"});
  REQUIRE(kept.code == 0);
  const Json unrecomputed = Json::parse(kept.out)["choices"];
  for (const Json& choice : unrecomputed) CHECK(choice["recompute"] == "none");
}

TEST_CASE("compare --jitter says how the best plans take to varying times", "[compare]") {
  const CommandResult json = planned(
      {"--micro-batch-size", "8", "--schedules", "1f1b", "--jitter", "50", "--choose-by", "p95", "--json"});
  REQUIRE(json.code == 0);
  const Json jitter = Json::parse(json.out)["jitter"];
  CHECK(jitter["p95_ms"] >= jitter["p50_ms"]);
  CHECK(planned({"--micro-batch-size", "8", "--jitter", "0"}).code == 2);

  const CommandResult several = planned({"--micro-batch-size", "8", "--schedules", "1f1b,zb_h1,pipedream",
                                         "--jitter", "50", "--choose-by", "p95", "--json"});
  INFO(several.err);
  REQUIRE(several.code == 0);
  const Json document = Json::parse(several.out);
  REQUIRE(document["choices"].size() == 3);
  const auto least = std::min_element(
      document["choices"].begin(), document["choices"].end(),
      [](const Json& a, const Json& b) { return a["p95_ms"].get<double>() < b["p95_ms"].get<double>(); });
  CHECK(document["plan"] == (*least)["plan"]);
  for (const Json& choice : document["choices"]) CHECK(choice["p95_ms"] >= choice["p50_ms"]);
}

TEST_CASE("compare takes settings behind a schedule's name, in a list too", "[compare]") {
  const CommandResult result = planned({"--micro-batch-size", "8", "--schedules",
                                        "1f1b:warmup_extra=1,zb_h1,pipedream:vertical_sync", "--json"});
  INFO(result.err);
  REQUIRE(result.code == 0);
  for (const Json choices = Json::parse(result.out)["choices"]; const Json& choice : choices) {
    const Json& schedule = choice["plan"]["schedule"];
    CHECK(schedule.value("warmup_extra", 0) == (schedule["name"] == "1f1b" ? 1 : 0));
    CHECK(schedule.value("vertical_sync", false) == (schedule["name"] == "pipedream"));
  }
}

TEST_CASE("compare says which options contradict each other", "[compare]") {
  const ScratchFolder folder;
  const std::string plan = changed_plan(folder, even_costs);
  const std::string schedule =
      folder.write("s.schedule", "stagecraft program 1\nstages 0\ngroups 1\nrank 0:\n");
  const auto refused = [](std::vector<std::string> arguments, const std::string& answer) {
    arguments.insert(arguments.begin(), "compare");
    const CommandResult wrong = stagecraft::test::stagecraft(arguments);
    INFO(arguments.back() << ": " << wrong.err);
    CHECK(wrong.code == 2);
    CHECK(wrong.out.empty());
    CHECK(says(wrong.err, answer));
  };
  refused({plan, "--stages", "2"}, "its stages stay");
  refused({plan, "--pareto"}, "its stages stay");
  refused({plan, "-o", "new.json"}, "its stages stay");
  refused({plan, "--micro-batches", "auto"}, "auto is for planning");
  refused({plan, "--schedules", "1f1b,pipdream"}, "did you mean \"pipedream\"?");
  refused({plan, "--set", "seed=1"}, "--set: is for the keys of a run config, and " + plan + " is none");
  refused({schedule, "--unit-costs"}, "compare takes a plan");
  refused({"--steps", "2"}, "stagecraft compare PLAN");
  refused({"--unit-costs"}, "stagecraft compare PLAN");
  refused({"--batch", "8", "--micro-batches", "2"}, "drop --micro-batches");
  refused({"--batch", "8", "--micro-batch-size", "2"}, "drop one");
  refused({"--micro-batches", "auto"}, "say with --batch");
  refused({"--schedules", "1f1b", "--svg", "a.svg"}, "there is one of each");
  refused({"--choose-by", "p95"}, "--jitter");
  refused({"--profile", "a.json"}, "--cluster is missing");
}

TEST_CASE("compare PLAN puts schedules side by side", "[compare]") {
  const ScratchFolder folder;
  const std::string plan = changed_plan(folder, even_costs);
  const Json json = compared({plan, "--schedules", "fill_drain,1f1b,pipedream"});
  REQUIRE(json["schedules"].size() == 3);
  const Json& fill_drain = json["schedules"][0];
  const Json& in_turn = json["schedules"][1];
  const Json& steady = json["schedules"][2];
  for (const Json& entry : {fill_drain, in_turn}) {
    CHECK(entry["time_ms"].get<double>() == Approx((8 + 4 - 1) * 3.0));
    CHECK(entry["bubble"].get<double>() == Approx(3.0 / 11));
    CHECK(entry["of_best"].get<double>() == Approx(33.0 / 24));
    CHECK(entry["versions"] == 1);
    CHECK(entry["messages"] == 2 * 3 * 8 + 1);  // an activation and a gradient per boundary, and the loss
    CHECK(entry["sent_bytes"] == 2 * 3 * 8 * 262144 + 16);
    CHECK_FALSE(entry["steady"].get<bool>());
  }
  CHECK(fill_drain["peak_bytes"].get<std::int64_t>() > in_turn["peak_bytes"].get<std::int64_t>());
  CHECK(steady["time_ms"].get<double>() == Approx(24));
  CHECK(steady["of_best"].get<double>() == Approx(1));
  CHECK(steady["versions"] == 2);
  CHECK(steady["steady"].get<bool>());

  const CommandResult all = stagecraft::test::stagecraft({"compare", plan, "--steps", "2"});
  CHECK(all.code == 0);
  CHECK(says(all.out, "2 steps ms"));
  CHECK(says(all.out, "66.000"));
  CHECK(says(all.out, "57.000"));  // (2 x 8 + 3) x 3: it fills once
  const Json once = compared({plan, "--schedules", "1f1b,1f1b"});
  CHECK(once["schedules"].size() == 1);
}

TEST_CASE("compare PLAN leaves the order that a plan carries to its own schedule", "[compare]") {
  const ScratchFolder folder;
  const std::string path = folder.path("searched.json");
  const CommandResult planned = stagecraft::test::stagecraft(
      {"plan", "--profile", STAGECRAFT_TEST_DATA "/profiles/gpt_10_layers.json", "--cluster",
       STAGECRAFT_TEST_DATA "/../../configs/clusters/one-machine-4-pcie.json", "--micro-batch-size", "4",
       "--micro-batches", "8", "--stages", "4", "--schedule", "auto", "-o", path});
  REQUIRE(planned.code == 0);
  const Json json = compared({path, "--schedules", "fill_drain,auto"});
  const auto step = [&](std::size_t row) { return json["schedules"][row]["time_ms"].get<double>(); };
  CHECK(step(1) < step(0));
}
