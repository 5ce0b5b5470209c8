// `train` and `report` as a user runs them.

#include "base/json.h"
#include "test/cli/train_cases.h"
#include "test/support/catch.h"

#include <string>
#include <vector>

namespace stagecraft::test {

TEST_CASE("train runs, and report compares", "[train]") {
  const ScratchFolder folder;
  const CommandResult trained = train(folder, tiny_run(folder));
  INFO(trained.err);
  REQUIRE(trained.code == 0);
  CHECK(trained.err.empty());
  CHECK(says(trained.out, "Plan: 2 stages"));
  CHECK(says(trained.out, "Done: 4 steps"));
  const std::string html = folder.path("report.html");
  const std::string svg = folder.path("timeline.svg");
  const CommandResult report = stagecraft({"report", folder.path("run"), "--html", html, "--svg", svg});
  INFO(report.err);
  REQUIRE(report.code == 0);
  CHECK(says(report.out, "wait activation"));
  CHECK(says(report.out, "step, median ms"));
  const std::string page = read_text_file(html);
  CHECK(says(page, "\"phase\":\"finished\""));
  CHECK(says(read_text_file(svg), "the last 2 steps, measured"));
  const CommandResult json = stagecraft({"report", folder.path("run"), "--json"});
  CHECK(Json::parse(json.out)["stage_times"].size() == 2);
}

TEST_CASE("replan answers from a run what another plan would bring", "[train]") {
  const ScratchFolder folder;
  const Json config = tiny_run(folder);
  REQUIRE(train(folder, config).code == 0);
  const std::string profile = folder.path("profile.json");
  REQUIRE(stagecraft({"profile", folder.write("run.json", config.dump()), "-o", profile}).code == 0);
  const std::string cluster = folder.write(
      "cluster.json", R"({"levels": [{"count": 2, "link": {"latency_ms": 0.01, "bytes_per_second": 1e9}}]})");
  std::vector<std::string> line{"replan", folder.path("run"), "--profile", profile, "--cluster", cluster};
  const CommandResult text = stagecraft(line);
  INFO(text.err);
  REQUIRE(text.code == 0);
  CHECK(says(text.out, "If a device is slow"));
  CHECK(says(text.out, "If the layers are slow"));
  const std::string plan = folder.path("new.json");
  line.insert(line.end(), {"--json", "--switch-seconds", "5", "--attribute", "layers", "-o", plan});
  const CommandResult json = stagecraft(line);
  REQUIRE(json.code == 0);
  const Json answers = Json::parse(json.out)["answers"];
  REQUIRE(answers.size() == 2);
  CHECK(Json::parse(json.out)["switch_ms"] == 5000);
  CHECK(answers[1]["blame"] == "layers");
  CHECK(json::parse_file(plan) == answers[1]["plan"]);
  const double gain = answers[1]["gain_ms"];
  CHECK(answers[1]["break_even_steps"].is_null() == (gain == 0));

  CHECK(json.err.empty());
  Json of_gpu = json::parse_file(profile);
  of_gpu["device"] = "NVIDIA H100";
  folder.write("profile.json", of_gpu.dump());
  const CommandResult other = stagecraft(line);
  CHECK(other.code == 0);
  CHECK(says(other.err,
             "profile.json: the profile is of a GPU (\"device\": \"NVIDIA H100\"), and the run is on CPUs"));

  line.insert(line.end(), {"--stages", "2"});
  check_refused(stagecraft(line), 2, "unknown option --stages");
  check_refused(stagecraft({"replan", folder.path("run")}), 2, "--profile is required");
}

TEST_CASE("train --json prints one document, --print-config a config that runs", "[train]") {
  const ScratchFolder folder;
  const CommandResult result = train(folder, tiny_run(folder), {"--json"});
  REQUIRE(result.code == 0);
  CHECK(Json::parse(result.out)["steps"] == 4);
  const CommandResult config = train(folder, tiny_run(folder), {"--print-config"});
  REQUIRE(config.code == 0);
  Json effective = Json::parse(config.out);
  CHECK(effective["gradient_accumulation_steps"] == 4);
  effective["run_dir"] = folder.path("again");
  CHECK(train(folder, effective).code == 0);
  CHECK(facts(folder.path("run")) == facts(folder.path("again")));
}

TEST_CASE("activation checkpointing recomputes and changes no loss; beside a plan it must agree", "[train]") {
  const ScratchFolder folder;
  Json config = tiny_run(folder);
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
                "/activation_checkpointing/recompute: all_but_last, but " + plan + " has all");
}

TEST_CASE("a run of hours that saves nothing before its end says so", "[train]") {
  const ScratchFolder folder;
  Json config = tiny_run(folder);
  config["train_steps"] = 1'000'000'000;
  const CommandResult late = train(folder, config, {"--dry-run"});
  CHECK(says(late.err, "checkpoint.every_steps is 0: nothing is saved before the run's end in some "));
  CHECK_FALSE(says(train(folder, config, {"--dry-run", "--set", "checkpoint.every_steps=100"}).err, "is 0"));
  CHECK_FALSE(says(train(folder, config, {"--dry-run", "--set", "train_steps=10"}).err, "is 0"));
}

TEST_CASE("report of what is no run exits 2", "[train]") {
  const ScratchFolder folder;
  check_refused(stagecraft({"report", folder.path("none")}), 2, "no such run directory");
  check_refused(stagecraft({"report", folder.path("")}), 2, "is a folder; a run directory is needed here");
}

TEST_CASE("a plan that no longer fits is made again, and the note says nothing else to do", "[train]") {
  const ScratchFolder folder;
  Json config = tiny_run(folder);
  REQUIRE(train(folder, config).code == 0);
  config["train_steps"] = 5;
  config["pipeline"] = {{"stages", 1}};
  const CommandResult resumed = train(folder, config, {"--resume"});
  INFO(resumed.err);
  CHECK(resumed.code == 0);
  CHECK(says(resumed.err, "run.json: /pipeline/stages: 1, but " + folder.path("run/plan.json") +
                              " has 2: the run is planned again"));
  CHECK_FALSE(says(resumed.err, "leave it out"));
  // Of a plan that is asked for, it says both.
  check_refused(train(folder, config,
                      {"--set", "run_dir=" + folder.path("new"), "--set", "pipeline.stages=2", "--plan",
                       folder.path("run/plan.json")}),
                2, "has 1; leave it out, or make another plan");
}

}  // namespace stagecraft::test
