// Weights that layers of several stages hold.

#include "base/json.h"
#include "schedules/checker/checker.h"
#include "schedules/checker/proofs.h"
#include "schedules/generators/registry.h"
#include "schedules/lowering/lowering.h"
#include "schedules/program/program_json.h"
#include "schedules/program/program_text.h"
#include "schedules/program/step_program.h"
#include "schedules/rules/reductions.h"
#include "schedules/simulator/simulator.h"
#include "test/support/catch.h"

#include <algorithm>

namespace stagecraft {
namespace {

using Ties = std::vector<std::vector<StageId>>;

std::vector<StageId> stages(std::initializer_list<int> numbers) {
  std::vector<StageId> all;
  for (const int number : numbers) all.emplace_back(number);
  return all;
}

/// One weight of the first and the last stage, another of all but the first, twice on the third.
const Ties kTies{stages({0, 3}), stages({1, 2, 2, 3})};
/// In a loop of two ranks, rank 0 steps with the second one first, rank 1 with the first.
const Ties kCrossed{stages({1, 2}), stages({0, 3})};

ScheduleRequest request(const std::string& schedule, const Ties& ties = kTies, int groups = 1) {
  const Schedule& its = find_schedule(schedule);
  ScheduleRequest request{its.place(4 / its.virtual_stages, its.virtual_stages), {}};
  request.group_sizes.assign(static_cast<std::size_t>(groups), 4);
  request.ties = ties;
  request.clip = its.clips;
  return request;
}

ScheduleProgram tied(const std::string& schedule, const Ties& ties = kTies) {
  return find_schedule(schedule).generate(request(schedule, ties));
}

std::string what_is_wrong(const LoweredProgram& program) {
  std::string all;
  for (const Finding& finding : check(program).findings) all += finding.message + "\n";
  return all;
}

/// Where the first action of that kind stands in the list.
std::ptrdiff_t position(const std::vector<Action>& list, Op op, TieId tie = {}) {
  return std::find_if(list.begin(), list.end(), [&](const Action& a) { return a.op == op && a.tie == tie; }) -
         list.begin();
}

TEST_CASE(
    "every schedule whose micro-batches read one version sums tied weights once on each rank, and is "
    "accepted",
    "[ties]") {
  const auto accepted = [](const Schedule& schedule, const Ties& ties, bool clip) {
    INFO(schedule.name << (clip ? ", clipped" : ""));
    ScheduleRequest asked = request(schedule.name, ties, schedule.synchronous ? 1 : 3);
    asked.vertical_sync = schedule.takes_vertical_sync;
    asked.clip = clip;
    const ScheduleProgram program = schedule.generate(asked);
    for (std::size_t k = 0; k < ties.size(); ++k) {
      const std::vector<Rank> members = members_of(program.placement, ties[k]);
      for (std::size_t r = 0; r < program.ranks.size(); ++r) {
        const bool member = std::binary_search(members.begin(), members.end(), Rank{r});
        const auto sums =
            std::count_if(program.ranks[r].begin(), program.ranks[r].end(),
                          [&](const Action& a) { return a.op == Op::tie && a.tie == TieId{k}; });
        CHECK(sums == (member ? program.groups() : 0));
      }
    }
    CHECK(what_is_wrong(lower(program)) == "");
  };
  for (const Schedule& schedule : schedules()) {
    for (const Ties& ties : {kTies, kCrossed}) {
      accepted(schedule, ties, false);
      if (schedule.clips) accepted(schedule, ties, true);
    }
  }
}

TEST_CASE("a schedule that reads other versions on other stages refuses ties and says what to do", "[ties]") {
  CHECK_THROWS_WITH(find_schedule("pipedream").generate(request("pipedream")),
                    Catch::Matchers::ContainsSubstring("vertical_sync, 2bw or a synchronous schedule") &&
                        Catch::Matchers::ContainsSubstring("--untie"));
  // The checker does not take the generator's word.
  ScheduleProgram program = find_schedule("pipedream").generate(request("pipedream", {}, 3));
  add_ties(program, kTies);
  CHECK_THAT(what_is_wrong(lower(program)),
             Catch::Matchers::ContainsSubstring("of which a micro-batch reads one version"));
}

TEST_CASE("programs as text and as JSON say which weights are tied", "[ties]") {
  const ScheduleProgram program = tied("1f1b");
  const std::string text = to_text(program);
  CHECK_THAT(text, Catch::Matchers::ContainsSubstring("\nties 0,3 1,2,2,3\n"));
  CHECK_THAT(text, Catch::Matchers::ContainsSubstring(" T0 T0.1 N0 S0\n"));
  CHECK(program_from_text(text, "t") == program);
  CHECK(program_from_json(to_json(program), "j") == program);
  const std::string without = to_text(tied("1f1b", {}));
  CHECK(without.find("ties") == std::string::npos);
  for (const char* line : {"ties 0", "ties 0,4", "ties 3,0", "ties 0,3,", "ties x", "ties"}) {
    INFO(line);
    std::string wrong = without;
    wrong.insert(wrong.find("rank 0"), std::string(line) + "\n");
    CHECK_THROWS_AS(program_from_text(wrong, "t"), InputError);
  }
  for (const char* word : {"T0.2", "T1", "T0.", "0T0", "T0v1", "B0.1"}) {
    INFO(word);
    std::string wrong = text;
    wrong.replace(wrong.find("T0 "), 2, word);
    CHECK_THROWS_AS(program_from_text(wrong, "t"), InputError);
  }
}

TEST_CASE("a sum that is missing, misplaced or on a rank without the weight is refused", "[ties]") {
  const auto refused = [](const auto& change, const std::string& why) {
    ScheduleProgram program = tied("1f1b");
    change(program);
    const LoweredProgram lowered = lower(program);
    CHECK_THAT(what_is_wrong(lowered), Catch::Matchers::ContainsSubstring(why));
  };
  refused(
      [](ScheduleProgram& p) {
        p.ranks[3].erase(p.ranks[3].begin() + position(p.ranks[3], Op::tie, TieId{0}));
      },
      "rank 3: no sum of tied weight 0 of group 0, which stage 3 holds");
  // Of all: then nobody waits for anybody.
  refused(
      [](ScheduleProgram& p) {
        for (auto& list : p.ranks) std::erase_if(list, [](const Action& a) { return a.op == Op::tie; });
      },
      "no sum of tied weight");
  refused(
      [](ScheduleProgram& p) {
        std::vector<Action>& list = p.ranks[0];
        std::swap(list[static_cast<std::size_t>(position(list, Op::tie, TieId{0}))],
                  list[static_cast<std::size_t>(position(list, Op::agree_norm))]);
      },
      "the sum of tied weight 0 of its group");
  refused(
      [](ScheduleProgram& p) {
        std::vector<Action>& list = p.ranks[0];
        const Action sum = list[static_cast<std::size_t>(position(list, Op::tie, TieId{0}))];
        std::erase(list, sum);
        list.insert(list.begin() + position(list, Op::backward), sum);
      },
      "every gradient of its group");
  refused(
      [](ScheduleProgram& p) { p.ranks[0].push_back({.op = Op::tie, .group = Group{0}, .tie = TieId{1}}); },
      "rank 0 holds no layer with tied weight 1");
  refused(
      [](ScheduleProgram& p) { p.ranks[1].push_back({.op = Op::tie, .group = Group{0}, .tie = TieId{7}}); },
      "tied weight 7 is none of the 2 tied weights");
  refused(
      [](ScheduleProgram& p) { p.ranks[0].push_back({.op = Op::tie, .group = Group{0}, .tie = TieId{0}}); },
      "already done");
}

TEST_CASE("two sums in two orders on two ranks are a deadlock", "[ties]") {
  ScheduleProgram program = tied("1f1b", {stages({0, 3}), stages({0, 3})});
  REQUIRE(what_is_wrong(lower(program)) == "");
  std::vector<Action>& list = program.ranks[3];
  std::swap(list[static_cast<std::size_t>(position(list, Op::tie, TieId{0}))],
            list[static_cast<std::size_t>(position(list, Op::tie, TieId{1}))]);
  LoweredProgram lowered = lower(tied("1f1b", {stages({0, 3}), stages({0, 3})}));
  auto& last = lowered.ranks[3];
  std::swap(last[static_cast<std::size_t>(position(last, Op::tie, TieId{0}))],
            last[static_cast<std::size_t>(position(last, Op::tie, TieId{1}))]);
  const Proof proof = check(lowered);
  REQUIRE_FALSE(proof.accepted());
  CHECK(std::any_of(proof.findings.begin(), proof.findings.end(),
                    [](const Finding& f) { return f.kind == Finding::Kind::deadlock && !f.cycle.empty(); }));
}

TEST_CASE("a tied weight's sum takes the time of an all-reduce of its copies' ranks, and staging memory",
          "[ties]") {
  const LoweredProgram program = lower(tied("1f1b", {stages({0, 3})}));
  CostTable costs = unit_costs(4, 4);
  for (NetworkLevel& level : costs.network.levels) level.link = {Seconds{0}, 1e6};
  const Seconds without = simulate(program, costs).makespan;
  const Bytes peak = check(program, &costs).memory[0].peak;
  costs.ties = {Bytes{1'000'000}};
  // Two ranks exchange half of it, twice.
  CHECK(simulate(program, costs).makespan.value == Approx(without.value + 1.0));
  CHECK(check(program, &costs).memory[0].peak ==
        peak + tie_staging(Bytes{1'000'000}, {Rank{3}, Rank{0}}, Rank{0}));
  CHECK(check(program, &costs).memory[1].peak == check(program, &costs).memory[2].peak);
  costs.ties = {Bytes{1}, Bytes{1}};
  CHECK_FALSE(check(program, &costs).accepted());
}

}  // namespace
}  // namespace stagecraft
