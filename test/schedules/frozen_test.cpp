// Stages before the first one with a trained weight: they have forwards alone.

#include "base/json.h"
#include "schedules/checker/checker.h"
#include "schedules/checker/proofs.h"
#include "schedules/costs/traffic.h"
#include "schedules/generators/registry.h"
#include "schedules/interchange/pytorch_csv.h"
#include "schedules/lowering/lowering.h"
#include "schedules/memory/stage_counts.h"
#include "schedules/program/consecutive.h"
#include "schedules/program/program_json.h"
#include "schedules/program/program_text.h"
#include "schedules/repair/repair.h"
#include "schedules/simulator/simulator.h"
#include "test/schedules/interpreter.h"
#include "test/schedules/random_programs.h"
#include "test/support/catch.h"

#include <algorithm>

namespace stagecraft {
namespace {

using Catch::Matchers::ContainsSubstring;

ScheduleProgram frozen_before(const std::string& schedule, int gradient_from, int stages = 4,
                              std::vector<int> groups = {6}) {
  const Schedule& its = find_schedule(schedule);
  ScheduleRequest request{its.place(stages / its.virtual_stages, its.virtual_stages), std::move(groups)};
  request.gradient_from = StageId{gradient_from};
  return its.generate(request);
}

std::string findings_of(const LoweredProgram& program, const TransportRules& rules = {}) {
  std::string all;
  for (const Finding& finding : check(program, nullptr, {}, rules).findings) all += finding.message + "\n";
  return all;
}

TEST_CASE("every schedule freezes its first stages, and is accepted under every transport's rules",
          "[frozen]") {
  for (const Schedule& schedule : schedules()) {
    for (int from = 0; from < 4; ++from) {
      INFO(schedule.name << " from stage " << from);
      const ScheduleProgram program = frozen_before(schedule.name, from);
      for (const auto& list : program.ranks) {
        for (const Action& action : list) {
          const bool frozen = action.stage.valid() && action.stage.value < from;
          CHECK(
              (!frozen || action.op == Op::load || action.op == Op::forward || action.op == Op::report_loss));
          if (frozen && action.op == Op::forward) CHECK(action.version == Version{0});
        }
      }
      CHECK(findings_of(lower(program)) == "");
      CHECK(program_from_text(to_text(program), "t") == program);
      CHECK(program_from_json(to_json(program), "j") == program);
      LoweringOptions options;
      options.rules = TransportRules::nccl(TransportRules::Channels::boundary);
      CHECK(findings_of(lower(program, options), options.rules) == "");
    }
  }
}

TEST_CASE("frozen programs, carried out with symbols, come to the same end in any order", "[frozen]") {
  REQUIRE(rc::check([] {
    const Schedule schedule = *rc::gen::elementOf(schedules());
    ScheduleRequest request = random_request(schedule);
    if (schedule.name == "2bw") request.group_sizes.resize(1);
    const int stages = request.placement.stages();
    const LoweredProgram whole = lower(schedule.generate(request));
    request.gradient_from = StageId{*rc::gen::inRange(0, stages)};
    if (!schedule.searched) {
      for (int from = 0; from + 2 < stages; ++from) {
        if (*rc::gen::inRange(0, 3) == 0) request.skips.push_back({StageId{from}, StageId{from + 2}});
      }
    }
    const LoweredProgram program = lower(schedule.generate(request));
    RC_ASSERT(findings_of(program) == "");
    const test::Outcome outcome = test::interpret(program, 1);
    RC_ASSERT(outcome.wrong == "");
    RC_ASSERT(test::interpret(program, 2, TransportRules::eager()) == outcome);
    (void)simulate(program, unit_costs(stages, request.placement.world()));
    if (!schedule.synchronous || request.clip || !request.skips.empty()) return;
    // In one step nobody reads what the frozen stages would have become.
    const test::Outcome trained = test::interpret(whole, 1);
    RC_ASSERT(trained.reports == outcome.reports);
    for (const auto& [place, weights] : outcome.weights) {
      if (place.first >= program.gradient_from.value) RC_ASSERT(trained.weights.at(place) == weights);
    }
  }));
}

TEST_CASE("steps with frozen stages follow each other", "[frozen]") {
  for (const char* schedule : {"1f1b", "zb_h1", "zb_v", "interleaved_1f1b"}) {
    INFO(schedule);
    CHECK(findings_of(repeated(lower(frozen_before(schedule, 2)), 3)) == "");
  }
}

TEST_CASE("text says where gradients begin, and refuses what cannot be", "[frozen]") {
  CHECK_THAT(to_text(frozen_before("1f1b", 2)), ContainsSubstring("\ngradient_from 2\n"));
  const std::string without = to_text(frozen_before("1f1b", 0));
  CHECK(without.find("gradient_from") == std::string::npos);
  for (const char* line :
       {"gradient_from", "gradient_from 4", "gradient_from -1", "gradient_from x", "gradient_from 1 2",
        "gradient_from 1\nkind validate", "gradient_from 1\nties 0,3"}) {
    INFO(line);
    std::string wrong = without;
    if (std::string(line).find("kind") != std::string::npos) wrong.erase(wrong.find("kind train"), 11);
    wrong.insert(wrong.find("rank 0"), std::string(line) + "\n");
    CHECK_THROWS_AS(program_from_text(wrong, "t"), InputError);
  }
}

TEST_CASE("a frozen stage with a backward, a step, a gradient or another version is refused", "[frozen]") {
  const auto refused = [](const auto& change, const std::string& why, const char* schedule = "1f1b") {
    ScheduleProgram program = find_schedule(schedule).synchronous ? frozen_before(schedule, 2)
                                                                  : frozen_before(schedule, 2, 4, {2, 2, 2});
    change(program);
    CHECK_THAT(findings_of(lower(program)), ContainsSubstring(why));
  };
  const auto add = [](Op op) {
    return [op](ScheduleProgram& p) {
      p.ranks[1].push_back({.op = op,
                            .stage = StageId{1},
                            .micro_batch = op == Op::step ? MicroBatch{} : MicroBatch{0},
                            .version = Version{0},
                            .group = Group{0}});
    };
  };
  const std::string why = "gradients begin at stage 2: stage 1 is frozen, and has forwards alone";
  for (const Op op : {Op::backward, Op::backward_input, Op::backward_weight, Op::recompute, Op::step})
    refused(add(op), why);
  refused([](ScheduleProgram& p) { p.gradient_from = StageId{1}; },
          "no backward (weight part) of micro-batch 0 on stage 1");
  refused([](ScheduleProgram& p) { p.gradient_from = StageId{3}; },
          "gradients begin at stage 3: stage 2 is frozen, and has forwards alone");
  refused(
      [](ScheduleProgram& p) {
        for (Action& action : p.ranks[1]) {
          if (action.op == Op::forward && action.group == Group{1}) action.version = Version{1};
        }
      },
      "needs the step that writes version 1, which is nowhere", "pipedream");
  LoweredProgram sends = lower(frozen_before("1f1b", 2));
  sends.ranks[2].push_back({.op = Op::start_send, .tag = Tag::gradient(StageId{2}, MicroBatch{0})});
  CHECK_THAT(findings_of(sends), ContainsSubstring(why));
}

TEST_CASE("a frozen stage holds what is under way, its weights and its buffers", "[frozen]") {
  CostTable costs = unit_costs(4, 4);
  for (std::size_t s = 0; s < 4; ++s) {
    StageCosts& stage = costs.stages[s];
    stage.parameters = Bytes{s < 2 ? 0 : 100'000};  // frozen ones are counted among the buffers
    stage.buffers = Bytes{1'000'000};
    stage.kept_for_input = Bytes{7'000};
    stage.forward_peak = Bytes{9'000};
    stage.unkept_forward_peak = Bytes{3'000};
    if (s > 0) stage.input = Bytes{100};
    if (s < 3) stage.output = Bytes{100};
  }
  const LoweredProgram program = lower(frozen_before("1f1b", 2, 4, {8}));
  const std::vector<MemoryProof> memory = prove(program, &costs).memory;
  // Two sends under way, one more made; what comes in has two slots.
  CHECK(memory.at(0).peak.value == 1'000'000 + 2 * 100 + 3'000);
  CHECK(memory.at(1).peak.value == 1'000'000 + 2 * 100 + 2 * 100 + 3'000);
  CHECK(memory.at(0).kept.value == 0);
  CHECK(memory.at(1).gradients.value == 0);
  CHECK(memory.at(2).kept.value == 7'000);
  CHECK(traffic(program, costs).bytes.value == 8 * (3 + 1) * 100);
  const std::vector<StageCounts> counts = stage_counts(frozen_before("1f1b", 2, 4, {8}));
  CHECK(counts.at(0) == StageCounts{});
  CHECK(counts.at(2).in_flight == 2);
}

TEST_CASE("PyTorch's schedules with frozen stages come back as they were", "[frozen]") {
  for (const char* schedule : {"1f1b", "zb_h1", "interleaved_1f1b"}) {
    INFO(schedule);
    const ScheduleProgram program = frozen_before(schedule, 1);
    ScheduleProgram read = schedule_program(pytorch_schedule(program));
    CHECK(read.gradient_from == StageId{1});
    read.schedule = program.schedule;
    CHECK(read == program);
    for (const SendWaits waits : {SendWaits::stated, SendWaits::left_out}) {
      const PytorchSchedule said = pytorch_schedule_with_communication(program, waits);
      CHECK(findings_of(lowered_program(said)) == "");
    }
  }
}

TEST_CASE("repair keeps frozen stages", "[frozen]") {
  ScheduleProgram program = frozen_before("1f1b", 2);
  std::erase_if(program.ranks[0], [](const Action& a) { return a.op == Op::load; });
  const Repair repaired = repair(program);
  CHECK(repaired.proof.accepted());
  CHECK(repaired.schedule == frozen_before("1f1b", 2));
  LoweredProgram lowered = lower(frozen_before("1f1b", 2));
  std::erase_if(lowered.ranks[1], [](const Action& a) { return a.op == Op::start_send; });
  CHECK(repair(lowered).proof.accepted());
}

}  // namespace
}  // namespace stagecraft
