// What goes directly between stages that are no neighbours.

#include "base/json.h"
#include "schedules/checker/checker.h"
#include "schedules/checker/proofs.h"
#include "schedules/costs/traffic.h"
#include "schedules/generators/registry.h"
#include "schedules/lowering/lowering.h"
#include "schedules/program/program_json.h"
#include "schedules/program/program_text.h"
#include "schedules/program/stage_links.h"
#include "schedules/simulator/simulator.h"
#include "test/schedules/interpreter.h"
#include "test/schedules/random_programs.h"
#include "test/support/catch.h"

#include <algorithm>

namespace stagecraft {
namespace {

using Links = std::vector<std::tuple<int, int, std::vector<std::size_t>, std::vector<std::size_t>>>;

Skip skip(int from, int to) { return {StageId{from}, StageId{to}}; }

/// A U-Net's two, one inside the other.
const std::vector<Skip> kSkips{skip(0, 3), skip(0, 5), skip(1, 4)};

ScheduleProgram skipping(const std::string& schedule, const std::vector<Skip>& skips = kSkips) {
  const Schedule& its = find_schedule(schedule);
  ScheduleRequest request{its.place(6 / its.virtual_stages, its.virtual_stages), {8}};
  request.skips = skips;
  return its.generate(request);
}

std::string wrong_with(const LoweredProgram& program) {
  std::string all;
  for (const Finding& finding : check(program).findings) all += finding.message + "\n";
  return all;
}

Links plain(const std::vector<StageLink>& links) {
  Links all;
  for (const StageLink& link : links)
    all.emplace_back(link.from.value, link.to.value, link.sent, link.received);
  return all;
}

TEST_CASE("values go from the stage that makes them to the one that reads them", "[skips]") {
  const PassedValue made{}, whole{false, {}};
  const auto by = [](std::size_t place) { return PassedValue{true, place}; };
  // One layer per stage. Behind layer 0: x, a skip s and integers i. Layers 1 and 2 pass s and i by, layer 3 reads
  // both and passes nothing.
  const PassedValues layers{
      {made, made, whole}, {made, by(1), {false, 2}}, {by(1), made, {false, 2}}, {made}};
  CHECK(plain(stage_links(layers, {0, 1, 2, 3}, true)) ==
        Links{{0, 1, {0, 2}, {0, 2}}, {1, 2, {0, 2}, {0, 2}}, {2, 3, {1, 2}, {1, 2}}, {0, 3, {1}, {0}}});
  CHECK(skips_of(stage_links(layers, {0, 1, 2, 3}, false)).empty());
  // Two layers per stage: stage 1 reads what stage 0 makes.
  CHECK(plain(stage_links(layers, {0, 2}, true)) == Links{{0, 1, {0, 1, 2}, {0, 1, 2}}});
  // A value that is read and goes on is another one behind its reader.
  const PassedValues threaded{{made, made}, {made, by(1)}, {made, made}, {made, by(1)}, {made}};
  CHECK(skips_of(stage_links(threaded, {0, 1, 2, 3, 4}, true)) == std::vector{skip(0, 2), skip(2, 4)});
  // Where neighbours would have nothing left, all goes through.
  const PassedValues idle{{made}, {made, by(0)}, {made}, {made}};
  CHECK(skips_of(stage_links(idle, {0, 1, 2}, true)).empty());
}

TEST_CASE("every schedule but searched ones takes skips, and is accepted under every transport's rules",
          "[skips]") {
  for (const Schedule& schedule : schedules()) {
    INFO(schedule.name);
    if (schedule.searched) {
      CHECK_THROWS_WITH(skipping(schedule.name), Catch::Matchers::ContainsSubstring("\"skips\": \"relay\""));
      continue;
    }
    const ScheduleProgram program = skipping(schedule.name);
    CHECK(wrong_with(lower(program)) == "");
    CHECK(program_from_text(to_text(program), "t") == program);
    CHECK(program_from_json(to_json(program), "j") == program);
  }
  const ScheduleProgram validation = validation_program(Placement::straight(6), 3, {}, kSkips);
  CHECK(wrong_with(lower(validation)) == "");
  LoweringOptions options;
  options.rules = TransportRules::nccl(TransportRules::Channels::boundary);
  const LoweredProgram launched = lower(skipping("1f1b"), options);
  CHECK(check(launched, nullptr, {}, options.rules).accepted());
}

TEST_CASE("programs with skips, carried out with symbols, come to the same end in any order", "[skips]") {
  REQUIRE(rc::check([] {
    const Schedule schedule = *rc::gen::suchThat(rc::gen::elementOf(schedules()),
                                                 [](const Schedule& one) { return !one.searched; });
    ScheduleRequest request = random_request(schedule);
    if (schedule.name == "2bw") request.group_sizes.resize(1);
    const int stages = request.placement.stages();
    for (int from = 0; from < stages; ++from) {
      for (int to = from + 2; to < stages; ++to) {
        if (*rc::gen::inRange(0, 3) == 0) request.skips.push_back(skip(from, to));
      }
    }
    const LoweredProgram program = lower(schedule.generate(request));
    RC_ASSERT(wrong_with(program) == "");
    const test::Outcome outcome = test::interpret(program, 1);
    RC_ASSERT(outcome.wrong == "");
    RC_ASSERT(test::interpret(program, 2, TransportRules::eager()) == outcome);
    (void)simulate(program, unit_costs(stages, request.placement.world()));
  }));
}

TEST_CASE("text says which stages skip, and refuses what cannot be", "[skips]") {
  CHECK_THAT(to_text(skipping("1f1b")), Catch::Matchers::ContainsSubstring("\nskips 0>3 0>5 1>4\n"));
  const std::string without = to_text(skipping("1f1b", {}));
  CHECK(without.find("skips") == std::string::npos);
  for (const char* line : {"skips 0>1", "skips 3>0", "skips 0>6", "skips 0>3 0>3", "skips 1>3 0>3",
                           "skips 0>", "skips 0", "skips x", "skips"}) {
    INFO(line);
    std::string wrong = without;
    wrong.insert(wrong.find("rank 0"), std::string(line) + "\n");
    CHECK_THROWS_AS(program_from_text(wrong, "t"), InputError);
  }
}

TEST_CASE("a skip's transfer that is missing, too late or not announced is refused", "[skips]") {
  const auto refused = [](const auto& change, const std::string& why) {
    LoweredProgram program = lower(skipping("1f1b"));
    change(program);
    CHECK_THAT(wrong_with(program), Catch::Matchers::ContainsSubstring(why));
  };
  const auto of_skip = [](Op op, int from, int to) {
    return [=](const Action& a) {
      return a.op == op && a.tag.from.value == from && a.tag.to.value == to && a.tag.number == 2;
    };
  };
  refused([](LoweredProgram& p) { p.skips.clear(); }, "no activation goes from stage 0 to stage 3");
  refused([&](LoweredProgram& p) { std::erase_if(p.ranks[0], of_skip(Op::start_send, 0, 5)); },
          "this transfer has no start_send");
  refused([&](LoweredProgram& p) { std::erase_if(p.ranks[5], of_skip(Op::wait_receive, 0, 5)); },
          "the wait for activation 2 from stage 0 to stage 5");
  refused([&](LoweredProgram& p) { std::erase_if(p.ranks[0], of_skip(Op::wait_receive, 5, 0)); },
          "the wait for gradient 2 from stage 5 to stage 0");
  // Released before its backward: the slot no longer holds what that reads.
  refused(
      [&](LoweredProgram& p) {
        auto& list = p.ranks[5];
        const auto wait = std::find_if(list.begin(), list.end(), of_skip(Op::wait_receive, 0, 5));
        const Action release{.op = Op::release, .slot = wait->slot};
        const auto later = std::find(wait, list.end(), release);
        std::rotate(wait + 1, later, later + 1);
      },
      "expected it to hold activation 2 from stage 0 to stage 5");
}

TEST_CASE("only its ends hold what a skip brings, and pay for it", "[skips]") {
  CostTable costs = unit_costs(6, 6);
  const LoweredProgram program = lower(skipping("1f1b", {skip(1, 4)}));
  const std::vector<MemoryProof> without = prove(program, &costs).memory;
  const Traffic bare = traffic(program, costs);
  costs.skips = {{StageId{1}, StageId{4}, Bytes{1000}}};
  const std::vector<MemoryProof> with = prove(program, &costs).memory;
  for (const std::size_t rank : {0U, 2U, 3U, 5U}) CHECK(with.at(rank).peak == without.at(rank).peak);
  // Stage 4 of six keeps two micro-batches, gets one slot more, and one for each of the two stages between;
  // stage 1 reads one gradient at a time. Either sends: two are under way, and one more is made.
  const auto slots = [&](std::size_t rank, Payload payload, int from) {
    return std::count_if(program.slots[rank].begin(), program.slots[rank].end(), [&](const SlotInfo& slot) {
      return slot.payload == payload && slot.from.value == from && std::abs(slot.to.value - from) == 3;
    });
  };
  CHECK(slots(4, Payload::activation, 1) == 5);
  CHECK(slots(1, Payload::gradient, 4) == 4);
  CHECK((with.at(4).peak - without.at(4).peak).value == (5 + 3) * 1000);
  CHECK((with.at(1).peak - without.at(1).peak).value == (4 + 3) * 1000);
  CHECK(traffic(program, costs).bytes - bare.bytes == Bytes{2 * 8 * 1000});
}

}  // namespace
}  // namespace stagecraft
