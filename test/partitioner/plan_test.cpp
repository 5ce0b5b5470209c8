#include "partitioner/plan/plan.h"

#include "base/files.h"
#include "base/json.h"
#include "schedules/program/program.h"
#include "schedules/program/program_text.h"
#include "test/support/catch.h"

#include <cstdio>
#include <functional>
#include <unistd.h>

namespace stagecraft {
namespace {

Plan small_plan() {
  Plan plan;
  plan.stages = {{0, 2, {Rank{0}}, Recompute::none}, {2, 3, {Rank{1}}, Recompute::none}};
  plan.micro_batches = 4;
  return plan;
}

std::string plan_refusal(const std::function<void(Plan&)>& spoil) {
  Plan plan = small_plan();
  spoil(plan);
  try {
    validate(plan, "p.json");
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a plan survives its file", "[plan]") {
  const std::string path = "/tmp/stagecraft_plan_test_" + std::to_string(getpid()) + ".json";
  Plan plan = small_plan();
  plan.costs.emplace().stages.resize(2);
  plan.costs->network.levels = {{2, Link{}}};
  plan.costs->speed = {1, 0.5};
  plan.capacity = Bytes{1000};
  plan.predicted.emplace().memory = {Bytes{1}, Bytes{2}};
  write_json_file(path, json::write(plan));
  const Plan read = read_plan(path);
  std::remove(path.c_str());
  CHECK(json::write(read) == json::write(plan));
  CHECK(read.layers() == 3);
  CHECK(read.placement() == Placement::straight(2));
}

TEST_CASE("four keys make a plan written by hand", "[plan]") {
  const Json json = json::parse_text(
      R"({"stages": [{"first_layer": 0, "last_layer": 5, "ranks": [0]}, {"first_layer": 5, "last_layer": 7, "ranks": [1]}],
          "schedule": {"name": "1f1b"}, "micro_batches": 4, "micro_batch_size": 8})",
      "hand.json");
  const auto plan = json::read<Plan>(json, {"hand.json", ""});
  validate(plan, "hand.json");
  CHECK(plan_program(plan, {4}).schedule == "1f1b");
}

TEST_CASE("a step of more micro-batches than anyone has is refused", "[plan]") {
  const Json json = json::parse_text(
      R"({"stages": [{"first_layer": 0, "last_layer": 5, "ranks": [0]}, {"first_layer": 5, "last_layer": 7, "ranks": [1]}],
          "schedule": {"name": "pipedream"}, "micro_batches": 2147483647, "micro_batch_size": 8})",
      "p.json");
  CHECK_THROWS_WITH((void)json::read<Plan>(json, {"p.json", ""}),
                    "p.json: /micro_batches: expected at least 1 and at most 1000000, found 2147483647");
}

TEST_CASE("a plan that cannot be is refused where it is wrong", "[plan]") {
  CHECK(plan_refusal([](Plan&) {}) == "");
  CHECK(plan_refusal([](Plan& p) { p.stages[0].first_layer = 1; }) ==
        "p.json: /stages/0/first_layer: the first stage starts at layer 0, not 1");
  CHECK(plan_refusal([](Plan& p) {
          p.stages[1].first_layer = 1;
        }).find("p.json: /stages/1/first_layer: expected 2, where stage 0 ends, found 1") == 0);
  CHECK(plan_refusal([](Plan& p) { p.stages[1].ranks = {Rank{2}}; }) ==
        "p.json: /stages: rank 1 holds no stage, but rank 2 does; ranks count from 0 without gaps");
  CHECK(plan_refusal([](Plan& p) {
          p.stages[1].ranks = {Rank{1}, Rank{1}};
        }).find("p.json: /stages/1/ranks/1: rank 1 is there twice") == 0);
  CHECK(plan_refusal([](Plan& p) { p.schedule.name = "1f1bb"; }).find("p.json: /schedule/name: ") == 0);
  CHECK(plan_refusal([](Plan& p) { p.schedule.name = "zb_v"; }).find("p.json: /schedule/name: zb_v wants") ==
        0);
  CHECK(plan_refusal([](Plan& p) {
          p.schedule.vertical_sync = true;
        }).find("p.json: /schedule/vertical_sync: ") == 0);
  CHECK(plan_refusal([](Plan& p) { p.costs.emplace().stages.resize(3); }) ==
        "p.json: /costs/stages: costs of 3 stages for a plan of 2");
  CHECK(plan_refusal([](Plan& p) {
          p.costs.emplace().stages.resize(2);
          p.costs->network.levels = {{1, Link{}}};
        }) == "p.json: /costs/network/levels: the network has 1 places for 2 ranks");
  CHECK(plan_refusal([](Plan& p) {
          p.costs.emplace().stages.resize(2);
          p.costs->network.levels = {{2, Link{}}};
          p.costs->speed = {1, -1};
        }) == "p.json: /costs/speed/1: expected at least 1e-06, found -1");
  CHECK(plan_refusal([](Plan& p) { p.predicted.emplace().memory = {Bytes{1}}; }) ==
        "p.json: /predicted/memory_bytes: 1 ranks' memory for 2 ranks");
}

TEST_CASE("a plan carries the order that was searched for", "[plan]") {
  Plan plan = small_plan();
  plan.schedule.name = "auto";
  plan.schedule.agree_norm = true;
  plan.micro_batches = 2;
  plan.program = PlannedOrders{2, {"F0 F1 I0 W0 B1", "F0 B0 F1 I1 W1"}};
  const std::string path = "/tmp/stagecraft_plan_program_test_" + std::to_string(getpid()) + ".json";
  write_json_file(path, json::write(plan));
  const Plan read = read_plan(path);
  std::remove(path.c_str());
  const ScheduleProgram program = plan_program(read, {2});
  CHECK(program.schedule == "auto");
  CHECK(to_text(program).find("rank 0: L0 F0 L1 F1 I0 W0 B1 N0 S0 P0\n") != std::string::npos);
  CHECK(planned_orders(program).ranks == plan.program->ranks);
  // Another step is generated.
  CHECK(plan_program(read, {1}).micro_batches() == 1);
  CHECK(plan_program(read, {1}).schedule == "auto");
}

TEST_CASE("a plan says which stages recompute, and its programs do", "[plan]") {
  const auto read = [](const std::string& recompute) {
    const Json json = json::parse_text(
        R"({"stages": [{"first_layer": 0, "last_layer": 5, "ranks": [0], "recompute": ")" + recompute +
            R"("}, {"first_layer": 5, "last_layer": 7, "ranks": [1]}],
          "schedule": {"name": "1f1b"}, "micro_batches": 2, "micro_batch_size": 8})",
        "hand.json");
    return json::read<Plan>(json, {"hand.json", ""});
  };
  const Plan plan = read("all_but_last");
  validate(plan, "hand.json");
  CHECK(to_text(plan_program(plan, {2})).find("rank 0: L0 F0 L1 F1 R0 B0 B1 ") != std::string::npos);
  CHECK(json::write(json::read<Plan>(json::write(plan), {"p", ""})) == json::write(plan));
  try {
    (void)read("al");
    FAIL("accepted");
  } catch (const InputError& error) {
    const std::string what = error.what();
    INFO(what);
    CHECK(what.find("hand.json: /stages/0/recompute: ") == 0);
    CHECK(what.find("\"all_but_last\"") != std::string::npos);
    CHECK(what.find("\"al\"") != std::string::npos);
  }
}

TEST_CASE("a carried order is without recomputes: the stages say where they are", "[plan]") {
  Plan plan = small_plan();
  plan.schedule.name = "auto";
  plan.micro_batches = 2;
  plan.program = PlannedOrders{2, {"F0 F1 I0 W0 B1", "F0 B0 F1 I1 W1"}};
  plan.stages[0].recompute = Recompute::all;
  plan.stages[1].recompute = Recompute::all_but_last;
  validate(plan, "p.json");
  const ScheduleProgram program = plan_program(plan, {2});
  const std::string text = to_text(program);
  CHECK(text.find("rank 0: L0 F0 L1 F1 R0 I0 W0 R1 B1 ") != std::string::npos);
  CHECK(text.find("rank 1: L0 F0 R0 B0 L1 F1 P0 I1 W1 ") != std::string::npos);
  CHECK(planned_orders(program).ranks == plan.program->ranks);
  plan.program->ranks[0] = "F0 F1 R0 I0 W0 B1";
  CHECK_THROWS_AS(validate(plan, "p.json"), InputError);
}

TEST_CASE("a carried order that cannot be is refused where it is wrong", "[plan]") {
  const auto with = [](std::vector<std::string> ranks, int micro_batches = 2) {
    return plan_refusal([&](Plan& p) {
      p.micro_batches = 2;
      p.program = PlannedOrders{micro_batches, std::move(ranks)};
    });
  };
  const auto begins = [](const std::string& text, const std::string& with_what) {
    INFO(text);
    CHECK(text.starts_with(with_what));
  };
  CHECK(with({"F0 F1 B0 B1", "F0 B0 F1 B1"}).empty());
  begins(with({"F0 F1 B0 B1"}), "p.json: /program/ranks: 1 ranks' orders for 2 ranks");
  begins(with({"F0 B0", "F0 B0"}, 1),
         "p.json: /program/micro_batches: expected 2, as the plan has in a step, found 1");
  begins(with({"F0 F1 B0 B1", "F0 B0 Fx B1"}), "p.json: /program/ranks/1: expected an action such as F0");
  begins(with({"F0 F1 B0 B2", "F0 B0 F1 B1"}), "p.json: /program/ranks/0: B2: ");
  begins(with({"F0 F1 B0 B1\nrank 9: F0", "F0 B0 F1 B1"}), "p.json: /program/ranks/0: expected one line");
  begins(with({"F0 F1 B0 B1 S0", "F0 B0 F1 B1"}), "p.json: /program/ranks/0: ");
  begins(with({"F0 F1 B0", "F0 B0 F1 B1"}), "p.json: /program: the checker refuses it: ");
  begins(with({"F0 B0 F1 B1", "F0 F1 B0 B1"}), "p.json: /program: the checker refuses it: ");
  begins(plan_refusal([](Plan& p) {
           p.schedule.name = "pipedream";
           p.program = PlannedOrders{4, {"F0", "F0"}};
         }),
         "p.json: /program: a program of one step is for synchronous schedules");
}

}  // namespace stagecraft
