#include "schedules/base/json.h"
#include "test/cli/sample_plan.h"
#include "test/support/catch.h"
#include "test/support/command.h"

using stagecraft::Json;
using stagecraft::test::changed_plan;
using stagecraft::test::CommandResult;
using stagecraft::test::kPlan;
using stagecraft::test::read_text_file;
using stagecraft::test::ScratchFolder;

namespace {

CommandResult simulate(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "simulate");
  return stagecraft::test::stagecraft(arguments);
}

Json simulated(std::vector<std::string> arguments) {
  arguments.emplace_back("--json");
  const CommandResult result = simulate(arguments);
  INFO(result.err);
  REQUIRE(result.code == 0);
  return Json::parse(result.out);
}

using stagecraft::test::says;

/// Forward 1 ms, backward 2 ms, no step, no transfers to speak of.
void even(Json& plan) {
  for (Json& stage : plan["costs"]["stages"]) {
    stage["forward_ms"] = stage["backward_input_ms"] = stage["backward_weight_ms"] = 1;
    stage["step_ms"] = 0;
  }
  plan["costs"]["network"]["levels"][0]["link"] = {{"latency_ms", 0}, {"bytes_per_second", 1e30}};
}

}  // namespace

TEST_CASE("simulate prints makespan, bubble and a row a rank", "[simulate]") {
  const CommandResult result = simulate({kPlan});
  CHECK(result.code == 0);
  CHECK(result.err.empty());
  CHECK(says(result.out, "makespan"));
  CHECK(says(result.out, "free links"));
  CHECK(says(result.out, "bubble"));
  CHECK(says(result.out, "wait gradient"));
}

TEST_CASE("simulate --json gives the figures", "[simulate]") {
  const ScratchFolder folder;
  const Json json = simulated({changed_plan(folder, even)});
  CHECK(json["makespan_ms"].get<double>() == Approx((8 + 4 - 1) * 3.0));
  CHECK(json["bubble"].get<double>() == Approx(3.0 / 11));
  CHECK(json["free_links"]["makespan_ms"].get<double>() == Approx(33));
  CHECK(json["ranks"] == 4);
  REQUIRE(json["rank_times"].size() == 4);
  CHECK(json["rank_times"][2]["forward_ms"].get<double>() == Approx(8));
  CHECK(json["rank_times"][2]["backward_ms"].get<double>() == Approx(16));
  CHECK(json["rank_times"][2]["busy"].get<double>() == Approx(24.0 / 33));
}

TEST_CASE("simulate takes other micro-batches and several steps", "[simulate]") {
  const ScratchFolder folder;
  const std::string plan = changed_plan(folder, even);
  CHECK(simulated({plan, "--micro-batches", "1"})["makespan_ms"].get<double>() == Approx(12));
  const Json three = simulated({plan, "--steps", "3"});
  CHECK(three["steps"] == 3);
  CHECK(three["makespan_ms"].get<double>() == Approx(99));
  CHECK(three["bubble"].get<double>() == Approx(3.0 / 11));
}

TEST_CASE("simulate of an asynchronous plan fills once", "[simulate]") {
  const ScratchFolder folder;
  const std::string plan = changed_plan(folder, [](Json& p) {
    even(p);
    p["schedule"]["name"] = "pipedream";
  });
  const Json json = simulated({plan, "--steps", "5"});
  CHECK(json["makespan_ms"].get<double>() == Approx((5 * 8 + 3) * 3.0));
  CHECK(json["steady_step_ms"].get<double>() == Approx(24));
  CHECK(says(simulate({plan}).out, "once steady"));
}

TEST_CASE("simulate says where every rank's idle time goes", "[simulate]") {
  const ScratchFolder folder;
  CHECK(says(simulate({kPlan}).out, "exposed transfer"));
  for (const Json& rank : simulated({changed_plan(folder, even), "--steps", "2"})["rank_times"]) {
    CHECK(rank["lost"]["dependency_ms"].get<double>() == Approx(2 * 9.0));
    CHECK(rank["lost"]["exposed_transfer_ms"].get<double>() == Approx(0).margin(1e-9));
  }
  const Json json = simulated({kPlan});
  for (const Json& rank : json["rank_times"]) {
    double total =
        rank["forward_ms"].get<double>() + rank["backward_ms"].get<double>() + rank["step_ms"].get<double>();
    for (const Json& part : rank["lost"]) total += part.get<double>();
    CHECK(total == Approx(json["makespan_ms"].get<double>()));
  }
}

TEST_CASE("simulate --jitter gives the median and the 95th percentile", "[simulate]") {
  const ScratchFolder folder;
  const std::string plan = changed_plan(folder, even);
  const Json given = simulated({plan, "--jitter", "500", "--stage-spread", "0.1"})["jitter"];
  CHECK(given["samples"] == 500);
  CHECK(given["makespan_p50_ms"].get<double>() > 33);
  CHECK(given["makespan_p95_ms"].get<double>() > given["makespan_p50_ms"].get<double>());
  CHECK(simulated({plan, "--jitter", "500", "--stage-spread", "0.1"})["jitter"] == given);
  CHECK(simulated({plan, "--jitter", "500", "--stage-spread", "0.1", "--seed", "1"})["jitter"] != given);
  CHECK_FALSE(simulated({plan}).contains("jitter"));
  const CommandResult none = simulate({plan, "--jitter", "10"});
  CHECK(none.code == 2);
  CHECK(says(none.err, "--stage-spread"));
  const std::string measured = changed_plan(folder, [](Json& p) {
    even(p);
    p["costs"]["stages"][1]["spread"] = {{"forward_ms", 0.5}};
  });
  CHECK(simulated({measured, "--jitter", "50"})["jitter"]["makespan_p95_ms"].get<double>() > 33);
}

TEST_CASE("simulate writes a trace and a picture of all steps", "[simulate]") {
  const ScratchFolder folder;
  const std::string trace = folder.path("t.json");
  const std::string svg = folder.path("t.svg");
  const CommandResult result = simulate({kPlan, "--steps", "2", "--trace", trace, "--svg", svg});
  REQUIRE(result.code == 0);
  CHECK(says(result.out, trace));
  CHECK(says(result.out, svg));
  const Json json = Json::parse(read_text_file(trace));
  int forwards = 0;
  for (const Json& event : json["traceEvents"]) forwards += event.value("cat", "") == "forward" ? 1 : 0;
  CHECK(forwards == 2 * 4 * 8);
  CHECK(read_text_file(svg).find("<svg") == 0);
}

TEST_CASE("simulate says what it cannot price or write", "[simulate]") {
  const ScratchFolder folder;
  const CommandResult bare = simulate({changed_plan(folder, [](Json& p) { p.erase("costs"); })});
  CHECK(bare.code == 2);
  CHECK(says(bare.err, "has no \"costs\""));
  const CommandResult schedule =
      simulate({folder.write("s.txt", "stagecraft program 1\nstages 0\ngroups 1\nrank 0: L0 F0 P0 B0 S0\n")});
  CHECK(schedule.code == 2);
  CHECK(says(schedule.err, "simulate takes a plan"));
  const CommandResult unwritable = simulate({kPlan, "--svg", folder.path("no/such/folder.svg")});
  CHECK(unwritable.code == 2);
  CHECK(unwritable.out.empty());
  CHECK(says(unwritable.err, "cannot be written"));
  const CommandResult zero = simulate({kPlan, "--steps", "0"});
  CHECK(zero.code == 2);
  CHECK(says(zero.err, "--steps"));
  const CommandResult negative =
      simulate({changed_plan(folder, [](Json& p) { p["costs"]["stages"][1]["forward_ms"] = -1; })});
  CHECK(negative.code == 2);
  CHECK(says(negative.err, "/costs/stages/1/forward_ms"));
}
