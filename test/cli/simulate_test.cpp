#include "schedules/base/json.h"
#include "schedules/base/table.h"
#include "test/cli/sample_plan.h"
#include "test/support/catch.h"
#include "test/support/command.h"

#include <algorithm>

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

TEST_CASE("simulate says how replicas sum their gradients", "[simulate]") {
  const ScratchFolder folder;
  CHECK_FALSE(simulated({kPlan}).contains("reductions"));
  const std::string plan = changed_plan(folder, [](Json& p) {
    p["stages"][0]["ranks"] = {0, 4};
    p["costs"]["network"]["levels"] =
        Json::array({{{"count", 5}, {"link", {{"latency_ms", 1}, {"bytes_per_second", 1e30}}}}});
  });
  const Json json = simulated({plan});
  REQUIRE(json["reductions"].size() == 1);
  CHECK(json["reductions"][0]["ranks"] == 2);
  CHECK(json["reductions"][0]["ring_ms"].get<double>() == Approx(2));
  CHECK(json["reductions"][0]["by_level_ms"].is_null());
  CHECK(json["reductions"][0]["used"] == "ring");
  CHECK(says(simulate({plan}).out, "stage 0 over 2 ranks"));
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
  CHECK(says(schedule.err, "with --unit-costs"));
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

TEST_CASE("simulate draws as text where it is asked to", "[simulate]") {
  CHECK_FALSE(says(simulate({kPlan}).out, "|F0"));  // no terminal here
  const CommandResult drawn = simulate({kPlan, "--text"});
  CHECK(drawn.code == 0);
  CHECK(says(drawn.out, "rank 0|F"));
  CHECK(says(drawn.out, "F forward  B backward"));
  CHECK(drawn.out.find('\x1b') == std::string::npos);
  CHECK(simulate({kPlan, "--text", "--json"}).out.front() == '{');
  const CommandResult both = simulate({kPlan, "--text", "--no-text"});
  CHECK(both.code == 2);
  CHECK(says(both.err, "--no-text"));
}

TEST_CASE("simulate draws a part of it", "[simulate]") {
  const CommandResult part = simulate({kPlan, "--unit-costs", "--text", "--from", "10", "--to", "20"});
  CHECK(part.code == 0);
  CHECK(says(part.out, "10 ms "));
  CHECK_FALSE(says(part.out, "F0"));
  CHECK(says(part.out, "F5"));
  CHECK(says(part.out, "33.00 ms"));  // the figures are of the whole
  const CommandResult beyond = simulate({kPlan, "--unit-costs", "--text", "--from", "40"});
  CHECK(beyond.code == 2);
  CHECK(says(beyond.err, "nothing is between"));
  CHECK(simulate({kPlan, "--text", "--from", "-1"}).code == 2);
}

TEST_CASE("simulate draws any schedule file with unit costs", "[simulate]") {
  const ScratchFolder folder;
  const std::string schedule = folder.write("s.txt",
                                            "stagecraft program 1\nschedule mine\nstages 0 1\ngroups 2\n"
                                            "rank 0: L0 F0 L1 F1 I0 W0 I1 W1 S0 P0\n"
                                            "rank 1: L0 F0 I0 W0 L1 F1 P0 I1 W1 S0\n");
  const std::string svg = folder.path("s.svg");
  const CommandResult result = simulate({schedule, "--unit-costs", "--text", "--svg", svg});
  INFO(result.err);
  REQUIRE(result.code == 0);
  CHECK(says(result.out, "mine, 2 stages on 2 ranks"));
  CHECK(says(result.out, "I input gradient  W weight gradient"));
  CHECK(says(read_text_file(svg), ">mine, 2 stages on 2 ranks, 2 micro-batches a step</text>"));
  CHECK_FALSE(says(read_text_file(svg), "MiB"));  // there are no bytes to draw
  CHECK(simulated({schedule, "--unit-costs"})["makespan_ms"].get<double>() == Approx(8));
  // Of a plan they take the place of its own.
  CHECK(simulated({kPlan, "--unit-costs"})["makespan_ms"].get<double>() == Approx((8 + 4 - 1) * 3.0));
  const std::string empty = folder.write("empty.txt", "stagecraft program 1\nstages 0\ngroups 1\nrank 0:\n");
  CHECK(simulate({empty, "--unit-costs", "--text"}).code == 3);
}

TEST_CASE("simulate draws the memory whose peak check proves", "[simulate]") {
  const ScratchFolder folder;
  const std::string svg = folder.path("t.svg");
  const Json checked = Json::parse(stagecraft::test::stagecraft({"check", kPlan, "--json"}).out);
  REQUIRE(simulate({kPlan, "--svg", svg}).code == 0);
  std::int64_t peak = 0;
  for (const Json& rank : checked["memory"]) peak = std::max(peak, rank["peak_bytes"].get<std::int64_t>());
  CHECK(says(read_text_file(svg), "peak " + stagecraft::format_bytes(stagecraft::Bytes{peak}) + " on rank "));
}

TEST_CASE("the picture in the docs is what its command draws", "[simulate]") {
  const ScratchFolder folder;
  const std::string pictures = STAGECRAFT_TEST_DATA "/../../docs/pictures/";
  const std::string svg = folder.path("1f1b.svg");
  REQUIRE(simulate({pictures + "1f1b.json", "--svg", svg}).code == 0);
  CHECK(read_text_file(svg) == read_text_file(pictures + "1f1b.svg"));
}

TEST_CASE("simulate --compare puts schedules side by side", "[simulate]") {
  const ScratchFolder folder;
  const std::string plan = changed_plan(folder, even);
  const std::string svg = folder.path("c.svg");
  const Json json = simulated({plan, "--compare", "fill_drain,1f1b,pipedream", "--svg", svg});
  REQUIRE(json["schedules"].size() == 3);
  const Json& fill_drain = json["schedules"][0];
  const Json& in_turn = json["schedules"][1];
  const Json& steady = json["schedules"][2];
  for (const Json& entry : {fill_drain, in_turn}) {
    CHECK(entry["makespan_ms"].get<double>() == Approx((8 + 4 - 1) * 3.0));
    CHECK(entry["bubble"].get<double>() == Approx(3.0 / 11));
    CHECK(entry["of_best"].get<double>() == Approx(33.0 / 24));
    CHECK(entry["versions"] == 1);
    CHECK(entry["messages"] == 2 * 3 * 8 + 1);  // an activation and a gradient a boundary, and the loss
    CHECK(entry["sent_bytes"] == 2 * 3 * 8 * 262144 + 16);
    CHECK_FALSE(entry["steady"].get<bool>());
  }
  CHECK(fill_drain["peak_bytes"].get<std::int64_t>() > in_turn["peak_bytes"].get<std::int64_t>());
  CHECK(steady["makespan_ms"].get<double>() == Approx(24));
  CHECK(steady["of_best"].get<double>() == Approx(1));
  CHECK(steady["versions"] == 2);
  CHECK(steady["steady"].get<bool>());
  for (const char* title : {">fill_drain, ", ">1f1b, ", ">pipedream, "})
    CHECK(says(read_text_file(svg), title));

  const CommandResult all = simulate({plan, "--compare", "all", "--steps", "2"});
  CHECK(all.code == 0);
  CHECK(says(all.out, "2 steps ms"));
  CHECK(says(all.out, "66.000"));
  CHECK(says(all.out, "57.000"));  // (2 x 8 + 3) x 3: it fills once
  const Json once = simulated({plan, "--compare", "1f1b,1f1b"});
  CHECK(once["schedules"].size() == 1);
}

TEST_CASE("simulate --compare leaves the order that a plan carries to its own schedule", "[simulate]") {
  const ScratchFolder folder;
  const std::string path = folder.path("searched.json");
  const CommandResult planned = stagecraft::test::stagecraft(
      {"plan", "--profile", STAGECRAFT_TEST_DATA "/profiles/gpt_10_layers.json", "--cluster",
       STAGECRAFT_TEST_DATA "/../../configs/clusters/one-machine-4-pcie.json", "--micro-batch-size", "4",
       "--micro-batches", "8", "--stages", "4", "--schedule", "auto", "-o", path});
  REQUIRE(planned.code == 0);
  const Json json = simulated({path, "--compare", "fill_drain,auto"});
  const auto step = [&](std::size_t row) { return json["schedules"][row]["makespan_ms"].get<double>(); };
  CHECK(step(1) < step(0));
}

TEST_CASE("simulate --compare says what it cannot", "[simulate]") {
  const ScratchFolder folder;
  const auto refuses = [](const std::vector<std::string>& arguments, const std::string& why) {
    const CommandResult result = simulate(arguments);
    INFO(result.err);
    CHECK(result.code == 2);
    CHECK(result.out.empty());
    CHECK(says(result.err, why));
  };
  refuses({kPlan, "--compare", "1f1b,pipdream"}, "did you mean \"pipedream\"?");
  refuses({kPlan, "--compare", ""}, "expected one of");
  refuses({kPlan, "--compare", "1f1b", "--trace", folder.path("t.json")}, "--trace is of one schedule");
  refuses({kPlan, "--compare", "1f1b", "--svg", folder.path("no/such.svg")}, "cannot be written");
  const std::string schedule =
      folder.write("s.txt", "stagecraft program 1\nstages 0\ngroups 1\nrank 0: L0 F0 P0 B0 S0\n");
  refuses({schedule, "--compare", "1f1b", "--unit-costs"}, "--compare takes a plan");
  // A plan that no schedule can take: every row says why.
  const std::string huge = changed_plan(
      folder, [](Json& plan) { plan["costs"]["stages"][0]["forward_peak_bytes"] = std::int64_t{1} << 50; });
  const CommandResult none = simulate({huge, "--compare", "all"});
  CHECK(none.code == 3);
  CHECK(says(none.out, "Not for this plan:\n  fill_drain: "));
  CHECK(says(none.out, "the cost table has"));
  CHECK(says(none.err, "none of these schedules can take it"));
}
