#include "engine/core/rank_program.h"

#include "schedules/generators/registry.h"
#include "schedules/generators/schedule.h"
#include "schedules/lowering/lowering.h"
#include "schedules/program/recompute.h"
#include "schedules/rules/reductions.h"
#include "test/support/catch.h"

#include <algorithm>
#include <set>
#include <utility>

using namespace stagecraft;

namespace {

LoweredProgram made(const char* schedule, Placement placement, std::vector<int> groups,
                    Recompute recompute = Recompute::none) {
  ScheduleRequest request{.placement = std::move(placement), .group_sizes = std::move(groups)};
  request.recompute = RecomputeSettings(static_cast<std::size_t>(request.placement.stages()), recompute);
  return lower(find_schedule(schedule).generate(request));
}

/// What the facts say against what the list says, action by action.
void check_facts(const LoweredProgram& program, Rank rank) {
  const RankProgram its(program, rank);
  CAPTURE(rank.value);
  REQUIRE((its.list == program.ranks[rank.index()]));
  REQUIRE(its.facts.size() == its.list.size());
  REQUIRE((its.slots == program.slots[rank.index()]));
  std::set<std::pair<StageId, MicroBatch>> recomputed;
  std::size_t sums = 0, joined = 0, looks = 0, looked = 0;
  bool reduces = false;
  for (std::size_t at = 0; at < its.list.size(); ++at) {
    const Action& action = its.list[at];
    const ActionFacts& facts = its.of(at);
    if (action.op == Op::recompute) recomputed.emplace(action.stage, action.micro_batch);
    if (action.stage.valid()) CHECK(its.stages.at(to_size(facts.stage)).id == action.stage);
    if (facts.micro_batch.valid()) CHECK(facts.group == program.group_of(facts.micro_batch));
    if (action.group.valid()) CHECK(facts.group == action.group);
    if (action.op == Op::release && at > 0) CHECK(facts.group == its.of(at - 1).group);
    joined += facts.at_backward == AtBackward::join_sum ? 1 : 0;
    looked += facts.at_backward == AtBackward::look_at_layers ? 1 : 0;
    const bool ends = action.op == Op::reduce ||
                      (action.op == Op::step && !its.agrees && program.placement.replicas(action.stage) == 1);
    if (!ends) continue;
    reduces = reduces || action.op == Op::reduce;
    const std::int32_t backward = last_backward_into(program, its.list, static_cast<std::int32_t>(at));
    if (backward < 0) continue;  // no micro-batch of the group is this rank's
    ++(action.op == Op::reduce ? sums : looks);
    CHECK(its.of(to_size(backward)).at_backward ==
          (action.op == Op::reduce ? AtBackward::join_sum : AtBackward::look_at_layers));
  }
  CHECK(joined == sums);
  CHECK(looked == looks);
  CHECK(its.sums == reduces);
  for (std::size_t at = 0; at < its.list.size(); ++at) {
    const Action& action = its.list[at];
    if (action.op == Op::forward)
      CHECK(its.of(at).recomputed_later == recomputed.contains({action.stage, action.micro_batch}));
  }
  for (const StageFacts& stage : its.stages) {
    CHECK((stage.staleness == staleness_of_updates(program, stage.id)));
    const auto loads = std::count_if(its.list.begin(), its.list.end(), [&](const Action& action) {
      return action.op == Op::load && action.stage == stage.id;
    });
    CHECK(static_cast<std::ptrdiff_t>(stage.loaded.size()) == loads);
  }
}

}  // namespace

TEST_CASE("what a rank knows of its program before it runs is what the list says", "[worker]") {
  Placement replicated = Placement::straight(3);
  replicated.ranks = {{Rank{0}, Rank{1}}, {Rank{2}}, {Rank{3}, Rank{4}}};
  for (const char* schedule : {"fill_drain", "1f1b", "zb_h1"}) {
    CAPTURE(schedule);
    for (const Recompute recompute : {Recompute::none, Recompute::all}) {
      const LoweredProgram program = made(schedule, Placement::straight(3), {5}, recompute);
      for (int r = 0; r < 3; ++r) check_facts(program, Rank{r});
    }
  }
  for (const std::vector<int>& groups : {std::vector{6}, std::vector{1}}) {
    const LoweredProgram program = made("1f1b", replicated, groups);
    for (int r = 0; r < 5; ++r) check_facts(program, Rank{r});
  }
  const LoweredProgram late = made("pipedream", Placement::straight(3), {2, 2, 1});
  for (int r = 0; r < 3; ++r) check_facts(late, Rank{r});
}
