// Stages between the first and the last that load fields of the batch.

#include "base/json.h"
#include "schedules/checker/checker.h"
#include "schedules/checker/proofs.h"
#include "schedules/generators/registry.h"
#include "schedules/lowering/lowering.h"
#include "schedules/program/program_json.h"
#include "schedules/program/program_text.h"
#include "schedules/program/segments.h"
#include "schedules/repair/repair.h"
#include "test/support/catch.h"

#include <algorithm>

namespace stagecraft {
namespace {

const std::vector<StageId> kMiddle{StageId{1}, StageId{2}};

ScheduleProgram loading(const std::string& schedule, const std::vector<StageId>& also_load = kMiddle) {
  const Schedule& its = find_schedule(schedule);
  ScheduleRequest request{its.place(4 / its.virtual_stages, its.virtual_stages), {4}};
  request.also_load = also_load;
  return its.generate(request);
}

std::size_t loads_of(const ScheduleProgram& program, StageId stage) {
  std::size_t loads = 0;
  for (const auto& list : program.ranks) {
    loads += static_cast<std::size_t>(std::count_if(list.begin(), list.end(), [&](const Action& action) {
      return action.op == Op::load && action.stage == stage;
    }));
  }
  return loads;
}

std::string findings(const LoweredProgram& program) {
  std::string all;
  for (const Finding& finding : check(program).findings) all += finding.message + "\n";
  return all;
}

TEST_CASE("every schedule loads fields where it is asked to, before each forward, and is accepted",
          "[loads]") {
  for (const char* name :
       {"fill_drain", "1f1b", "zb_h1", "zb_v", "interleaved_1f1b", "pipedream", "2bw", "auto"}) {
    INFO(name);
    const ScheduleProgram program = loading(name);
    for (int s = 0; s < 4; ++s) CHECK(loads_of(program, StageId{s}) == 4);
    CHECK(check(lower(program)).accepted());
    CHECK(loads_of(loading(name, {}), StageId{1}) == 0);
  }
  const ScheduleProgram validation = validation_program(Placement::straight(4), 3, kMiddle);
  CHECK(loads_of(validation, StageId{2}) == 3);
  CHECK(check(lower(validation)).accepted());
}

TEST_CASE("programs as text and as JSON say which stages load", "[loads]") {
  const ScheduleProgram program = loading("1f1b");
  CHECK_THAT(to_text(program), Catch::Matchers::ContainsSubstring("\nloads 1 2\n"));
  CHECK(program_from_text(to_text(program), "t") == program);
  CHECK(program_from_json(to_json(program), "j") == program);
  const std::string text = to_text(loading("1f1b", {}));
  CHECK(text.find("loads") == std::string::npos);
  for (const char* line : {"loads 0", "loads 3", "loads 4", "loads 2 1", "loads 1 1", "loads x", "loads"}) {
    INFO(line);
    std::string wrong = text;
    wrong.insert(wrong.find("rank 0"), std::string(line) + "\n");
    CHECK_THROWS_AS(program_from_text(wrong, "t"), InputError);
  }
}

TEST_CASE("a load that is missing or not announced is found, and repaired", "[loads]") {
  ScheduleProgram program = loading("1f1b");
  std::vector<Action>& list = program.ranks[1];
  list.erase(std::find_if(list.begin(), list.end(), [](const Action& a) { return a.op == Op::load; }));
  CHECK_THAT(findings(lower(program)), Catch::Matchers::ContainsSubstring("the load of its data"));
  CHECK(repair(program).proof.accepted());

  LoweredProgram unannounced = lower(loading("1f1b"));
  unannounced.also_load.clear();
  CHECK_THAT(findings(unannounced), Catch::Matchers::ContainsSubstring("those that \"loads\" names"));
}

TEST_CASE("fields are held from their load to the last use, and counted where they are read ahead",
          "[loads]") {
  const ScheduleProgram program = loading("1f1b");
  CostTable costs;
  for (int s = 0; s < 4; ++s) costs.stages.emplace_back();
  const Bytes without = prove(lower(program), &costs).memory.at(1).peak;
  costs.stages[1].fields = Bytes{1000};
  const std::vector<MemoryProof> with = prove(lower(program), &costs).memory;
  // Stage 1 of four has three micro-batches in flight.
  CHECK(with.at(1).peak - without == Bytes{1000} * (kReadAhead + 3));
  CHECK(with.at(2).peak == without);
}

}  // namespace
}  // namespace stagecraft
