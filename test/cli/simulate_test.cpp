#include "stagecraft/base/json.h"
#include "stagecraft/base/table.h"
#include "test/cli/sample_plan.h"
#include "test/support/catch.h"
#include "test/support/command.h"

#include <algorithm>

using stagecraft::Json;
using stagecraft::test::changed_plan;
using stagecraft::test::CommandResult;
using stagecraft::test::even_costs;
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

}  // namespace

TEST_CASE("simulate --json gives the figures", "[simulate]") {
  const ScratchFolder folder;
  const Json json = simulated({changed_plan(folder, even_costs)});
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
  const std::string plan = changed_plan(folder, even_costs);
  CHECK(simulated({plan, "--micro-batches", "1"})["makespan_ms"].get<double>() == Approx(12));
  const Json three = simulated({plan, "--steps", "3"});
  CHECK(three["steps"] == 3);
  CHECK(three["makespan_ms"].get<double>() == Approx(99));
  CHECK(three["bubble"].get<double>() == Approx(3.0 / 11));
}

TEST_CASE("simulate of an asynchronous plan fills once", "[simulate]") {
  const ScratchFolder folder;
  const std::string plan = changed_plan(folder, [](Json& p) {
    even_costs(p);
    p["schedule"]["name"] = "pipedream";
  });
  const Json json = simulated({plan, "--steps", "5"});
  CHECK(json["makespan_ms"].get<double>() == Approx((5 * 8 + 3) * 3.0));
  CHECK(json["steady_step_ms"].get<double>() == Approx(24));
}

TEST_CASE("simulate says where every rank's idle time goes", "[simulate]") {
  const ScratchFolder folder;
  for (const Json ranks = simulated({changed_plan(folder, even_costs), "--steps", "2"})["rank_times"];
       const Json& rank : ranks) {
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
}

TEST_CASE("simulate --jitter gives the median and the 95th percentile", "[simulate]") {
  const ScratchFolder folder;
  const std::string plan = changed_plan(folder, even_costs);
  const Json given = simulated({plan, "--jitter", "500", "--stage-spread", "0.1"})["jitter"];
  CHECK(given["samples"] == 500);
  CHECK(given["makespan_p50_ms"].get<double>() > 33);
  CHECK(given["makespan_p95_ms"].get<double>() > given["makespan_p50_ms"].get<double>());
  CHECK(simulated({plan, "--jitter", "500", "--stage-spread", "0.1"})["jitter"] == given);
  CHECK(simulated({plan, "--jitter", "500", "--stage-spread", "0.1", "--seed", "1"})["jitter"] != given);
  CHECK_FALSE(simulated({plan}).contains("jitter"));
  const std::string measured = changed_plan(folder, [](Json& p) {
    even_costs(p);
    p["costs"]["stages"][1]["spread"] = {{"forward_ms", 0.5}};
  });
  CHECK(simulated({measured, "--jitter", "50"})["jitter"]["makespan_p95_ms"].get<double>() > 33);
}

TEST_CASE("simulate draws nothing beside a document", "[simulate]") {
  CHECK(simulate({kPlan, "--text", "--json"}).out == simulate({kPlan, "--json"}).out);
}

TEST_CASE("simulate prices any schedule file with unit costs", "[simulate]") {
  const ScratchFolder folder;
  const std::string schedule = folder.write("s.txt",
                                            "stagecraft program 1\nschedule mine\nstages 0 1\ngroups 2\n"
                                            "rank 0: L0 F0 L1 F1 I0 W0 I1 W1 S0 P0\n"
                                            "rank 1: L0 F0 I0 W0 L1 F1 P0 I1 W1 S0\n");
  CHECK(simulated({schedule, "--unit-costs"})["makespan_ms"].get<double>() == Approx(8));
  // Of a plan they take the place of its own.
  CHECK(simulated({kPlan, "--unit-costs"})["makespan_ms"].get<double>() == Approx((8 + 4 - 1) * 3.0));
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
