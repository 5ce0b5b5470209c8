#include "schedules/checker/checker.h"
#include "schedules/generators/registry.h"
#include "schedules/generators/schedule.h"
#include "schedules/lowering/lowering.h"
#include "schedules/memory/stage_counts.h"
#include "schedules/program/program_text.h"
#include "test/schedules/random_programs.h"
#include "test/support/catch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <fstream>
#include <map>
#include <set>
#include <sstream>

namespace stagecraft {
namespace {

std::string golden(const std::string& name) {
  std::ifstream in(STAGECRAFT_TEST_DATA "/schedules/" + name + ".txt");
  REQUIRE(in);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

std::string generated(const char* schedule, const ScheduleRequest& request) {
  return to_text(find_schedule(schedule).generate(request));
}

/// The actions of one stage on one rank, in order.
std::vector<Action> of_stage(const ScheduleProgram& program, Rank rank, StageId stage) {
  std::vector<Action> actions;
  for (const Action& a : program.ranks[rank.index()]) {
    if (a.stage == stage) actions.push_back(a);
  }
  return actions;
}

template <class Visit>
void each_replica(const ScheduleProgram& program, const Visit& visit) {
  for (int s = 0; s < program.placement.stages(); ++s) {
    for (int r = 0; r < program.placement.replicas(StageId{s}); ++r) {
      const Rank rank = program.placement.ranks[static_cast<std::size_t>(s)][static_cast<std::size_t>(r)];
      visit(StageId{s}, r, of_stage(program, rank, StageId{s}));
    }
  }
}

/// Written down a second time on purpose: how far the version that micro-batch i reads lags behind, by the
/// papers' words. Ranks from the stage on, less one, rounded down to whole rounds of its replicas.
int delay_by_the_paper(const Placement& placement, int stage) {
  int ranks = 0;
  for (int s = stage; s < placement.stages(); ++s) ranks += placement.replicas(StageId{s});
  const int replicas = placement.replicas(StageId{stage});
  return (ranks - 1) / replicas * replicas;
}

int groups_complete_after(const std::vector<int>& group_sizes, int micro_batches) {
  int end = 0;
  int complete = 0;
  for (const int size : group_sizes) {
    end += size;
    if (end <= micro_batches) ++complete;
  }
  return complete;
}

}  // namespace

TEST_CASE("more actions than a program may have are refused before any is made", "[generators]") {
  for (const Schedule& schedule : schedules()) {
    if (schedule.placement != PlacementKind::straight) continue;
    INFO(schedule.name);
    CHECK_THROWS_WITH(schedule.generate({.placement = Placement::straight(64), .group_sizes = {1'000'000}}),
                      Catch::Matchers::ContainsSubstring(
                          "64 stages and 1000000 micro-batches make at least 128000000 actions") &&
                          Catch::Matchers::ContainsSubstring("make the micro-batches fewer and larger"));
  }
  CHECK_THROWS_AS(
      find_schedule("v_half").generate({.placement = Placement::zigzag(32, 2), .group_sizes = {1'000'000}}),
      InputError);
  CHECK_THROWS_WITH(validation_program(Placement::straight(64), 1'000'000),
                    Catch::Matchers::ContainsSubstring("64000000 actions") &&
                        Catch::Matchers::ContainsSubstring("validate on fewer"));
}

TEST_CASE("small programs are those of the papers' figures", "[generators]") {
  const ScheduleRequest three{.placement = Placement::straight(3), .group_sizes = {4}};
  CHECK(generated("fill_drain", {.placement = Placement::straight(3), .group_sizes = {4}, .clip = true}) ==
        golden("fill_drain_p3_m4_clip"));
  CHECK(generated("1f1b", three) == golden("1f1b_p3_m4"));
  CHECK(generated("1f1b", {.placement = Placement::straight(4), .group_sizes = {2}}) == golden("1f1b_p4_m2"));
  CHECK(generated("1f1b", {.placement = Placement{{{Rank{0}}, {Rank{0}}, {Rank{1}}}}, .group_sizes = {4}}) ==
        golden("1f1b_shared_rank"));
  CHECK(generated("pipedream", {.placement = Placement::straight(3), .group_sizes = {2, 2, 1}}) ==
        golden("pipedream_p3_stashing"));
  CHECK(generated("pipedream", {.placement = Placement::straight(3),
                                .group_sizes = {1, 1, 1, 1, 1},
                                .vertical_sync = true}) == golden("pipedream_p3_vertical_sync"));
  CHECK(generated("pipedream", {.placement = placement_of_widths({2, 1}), .group_sizes = {2, 2, 2}}) ==
        golden("pipedream_2_1"));
  CHECK(to_text(validation_program(Placement::straight(2), 3)) == golden("validation_p2_m3"));
}

TEST_CASE("each replica does each of its micro-batches once, in order, and steps each group once",
          "[generators]") {
  REQUIRE(rc::check([] {
    const RandomProgram random = random_program();
    const ScheduleProgram& program = random.program;
    each_replica(program, [&](StageId stage, int replica, const std::vector<Action>& actions) {
      const int replicas = program.placement.replicas(stage);
      int forwards = 0;
      int backwards = 0;
      int weights = 0;  // of split ones
      int steps = 0;
      int loads = 0;
      int reductions = 0;
      for (const Action& a : actions) {
        if (a.op == Op::forward) RC_ASSERT(a.micro_batch.value == replica + replicas * forwards++);
        if (a.op == Op::backward || a.op == Op::backward_input) {
          RC_ASSERT(a.micro_batch.value == replica + replicas * backwards++);
        }
        if (a.op == Op::backward_weight) RC_ASSERT(a.micro_batch.value == replica + replicas * weights++);
        if (a.op == Op::load) RC_ASSERT(a.micro_batch.value == replica + replicas * loads++);
        if (is_compute(a.op)) RC_ASSERT(a.group == program.group_of(a.micro_batch));
        RC_ASSERT(backwards <= forwards);
        RC_ASSERT(weights <= backwards);
        if (a.op == Op::reduce) RC_ASSERT(a.group.value == reductions++);
        if (a.op == Op::step) {
          RC_ASSERT(a.group.value == steps);
          RC_ASSERT(a.version.value == steps++);
          RC_ASSERT(reductions == (replicas > 1 ? steps : 0));
          // All of the replica's micro-batches of the group are in.
          const int next = replica + replicas * backwards;
          RC_ASSERT(next >= program.micro_batches() || program.group_of(MicroBatch{next}) > a.group);
        }
      }
      const int own = std::max(0, (program.micro_batches() - replica + replicas - 1) / replicas);
      const bool reads_data = stage.value == 0 || stage.value == program.placement.stages() - 1;
      RC_ASSERT(forwards == own);
      RC_ASSERT(backwards == own);
      RC_ASSERT(weights <= own);
      RC_ASSERT(steps == program.groups());
      RC_ASSERT(loads == (reads_data ? own : 0));
    });
  }));
}

TEST_CASE("losses are sent once by every replica that has one, and printed once", "[generators]") {
  REQUIRE(rc::check([] {
    const ScheduleProgram program = random_program().program;
    const Placement& placement = program.placement;
    const StageId last{placement.stages() - 1};
    std::map<std::pair<Rank, Group>, int> reports;
    for (std::size_t r = 0; r < program.ranks.size(); ++r) {
      for (const Action& a : program.ranks[r]) {
        if (a.op == Op::report_loss) ++reports[{Rank{r}, a.group}];
      }
    }
    std::set<std::pair<Rank, Group>> expected;
    for (int g = 0; g < program.groups(); ++g) expected.insert({placement.ranks[0][0], Group{g}});
    for (int i = 0; i < program.micro_batches(); ++i) {
      expected.insert({placement.rank_of(last, MicroBatch{i}), program.group_of(MicroBatch{i})});
    }
    RC_ASSERT(reports.size() == expected.size());
    for (const auto& [key, count] : reports) {
      RC_ASSERT(count == 1);
      RC_ASSERT(expected.contains(key));
    }
  }));
}

TEST_CASE("versions follow the closed form, and what the list itself says", "[generators]") {
  REQUIRE(rc::check([] {
    ScheduleRequest request{.placement = *rc::gen::arbitrary<bool>() ? random_widths(5) : random_shared(),
                            .group_sizes = random_groups(12),
                            .vertical_sync = *rc::gen::arbitrary<bool>()};
    const ScheduleProgram program = find_schedule("pipedream").generate(request);
    each_replica(program, [&](StageId stage, int, const std::vector<Action>& actions) {
      const int delay = delay_by_the_paper(program.placement, request.vertical_sync ? 0 : stage.value);
      int steps = 0;
      std::map<MicroBatch, Version> read;
      for (const Action& a : actions) {
        if (a.op == Op::step) ++steps;
        if (a.op == Op::forward) {
          RC_ASSERT(a.version.value ==
                    groups_complete_after(request.group_sizes, std::max(0, a.micro_batch.value - delay)));
          RC_ASSERT(a.version.value <= steps);                                                  // it exists
          if (!request.vertical_sync || stage.value == 0) RC_ASSERT(a.version.value == steps);  // the newest
          read[a.micro_batch] = a.version;
        }
        if (a.op == Op::backward) RC_ASSERT(a.version == read.at(a.micro_batch));
      }
    });
  }));
}

TEST_CASE("a straight pipeline lags p - 1 - s micro-batches, with vertical sync p - 1", "[generators]") {
  for (int p = 1; p <= 6; ++p) {
    for (const bool vertical : {false, true}) {
      const std::vector<int> groups{3, 1, 2, 2, 5, 1};
      const auto program =
          find_schedule("pipedream")
              .generate(
                  {.placement = Placement::straight(p), .group_sizes = groups, .vertical_sync = vertical});
      for (int s = 0; s < p; ++s) {
        for (const Action& a : program.ranks[static_cast<std::size_t>(s)]) {
          if (a.op != Op::forward) continue;
          const int delay = vertical ? p - 1 : p - 1 - s;
          CHECK(a.version.value == groups_complete_after(groups, std::max(0, a.micro_batch.value - delay)));
        }
      }
    }
  }
}

TEST_CASE("stage_counts are what the lists say, counted another way", "[generators]") {
  REQUIRE(rc::check([] {
    const RandomProgram random = random_program();
    std::vector<StageCounts> counted(static_cast<std::size_t>(random.program.placement.stages()));
    each_replica(random.program, [&](StageId stage, int, const std::vector<Action>& actions) {
      StageCounts& most = counted[stage.index()];
      const auto before = [&](std::size_t end, Op op) {
        return static_cast<int>(std::count_if(actions.begin(), actions.begin() + static_cast<long>(end),
                                              [&](const Action& a) { return a.op == op; }));
      };
      Version current{0};
      for (std::size_t i = 1; i <= actions.size(); ++i) {
        const Action& done = actions[i - 1];
        const int whole = before(i, Op::backward);
        const int input = before(i, Op::backward_input);
        most.in_flight = std::max(most.in_flight, before(i, Op::forward) - whole - input);
        most.kept = most.in_flight;  // nothing is recomputed; recompute_test.cpp has the rest
        most.unweighted = std::max(most.unweighted, input - before(i, Op::backward_weight));
        if (done.op == Op::step) current = Version{done.version.value + 1};
        std::set<Version> needed{current};
        for (std::size_t j = i; j < actions.size(); ++j) {
          if (is_compute(actions[j].op) && actions[j].version < current) needed.insert(actions[j].version);
        }
        most.versions = std::max(most.versions, static_cast<int>(needed.size()));
      }
    });
    RC_ASSERT(stage_counts(random.program) == counted);
  }));
}

TEST_CASE("forwards more beforehand deadlock nobody, whatever the stages' widths", "[generators]") {
  std::vector<std::vector<int>> all{{}};
  for (std::size_t next = 0; next < all.size(); ++next) {  // up to three stages of up to four replicas
    if (all[next].size() == 3) continue;
    for (int replicas = 1; replicas <= 4; ++replicas) {
      all.push_back(all[next]);
      all.back().push_back(replicas);
    }
  }
  for (const std::vector<int>& widths : all) {
    if (widths.empty()) continue;
    Placement placement;
    int ranks = 0;
    for (const int replicas : widths) {
      placement.ranks.emplace_back();
      for (int replica = 0; replica < replicas; ++replica) placement.ranks.back().emplace_back(ranks++);
    }
    for (int extra = 0; extra <= 5; ++extra) {
      for (const int micro_batches : {1, 4, 7, 13}) {
        INFO(fmt::format("widths {}, {} more, {} micro-batches", fmt::join(widths, "-"), extra,
                         micro_batches));
        const ScheduleProgram program = find_schedule("1f1b").generate(
            {.placement = placement, .group_sizes = {micro_batches}, .warmup_extra = extra});
        CHECK(check(lower(program)).accepted());
      }
    }
  }
}

TEST_CASE("2bw says whether its short group is an epoch's last mini-batch", "[generators]") {
  const Placement straight = Placement::straight(4);
  using Catch::Matchers::ContainsSubstring;
  CHECK_THROWS_WITH(find_schedule("2bw").generate({straight, {4, 4, 2, 4}}),
                    ContainsSubstring("short mini-batch has 2") && ContainsSubstring("data.drop_last"));
  CHECK_THROWS_WITH(find_schedule("2bw").generate({straight, {2, 2, 2}}),
                    ContainsSubstring("; an update has 2") && !ContainsSubstring("drop_last"));
}

TEST_CASE("the figures of the literature", "[generators]") {
  const Placement straight = Placement::straight(4);
  const std::vector<int> every_micro_batch(20, 1);
  const auto of = [&](const char* name, const ScheduleRequest& request) {
    return stage_counts(find_schedule(name).generate(request));
  };
  for (std::size_t s = 0; s < 4; ++s) {
    const int to_go = 4 - static_cast<int>(s);
    CHECK(of("fill_drain", {straight, {8}})[s].in_flight == 8);
    CHECK(of("1f1b", {straight, {8}})[s].in_flight == to_go);
    CHECK(of("1f1b", {straight, {2}})[s].in_flight == std::min(2, to_go));
    CHECK(of("1f1b", {.placement = straight, .group_sizes = {8}, .warmup_extra = 2})[s].in_flight ==
          to_go + 2);
    CHECK(of("pipedream", {straight, every_micro_batch})[s].versions == to_go);
    CHECK(of("pipedream", {straight, every_micro_batch, true})[s].versions == 4);
    CHECK(of("2bw", {straight, {4, 4, 4, 4}})[s].versions == 2);
    CHECK(of("1f1b", {straight, {8}})[s].versions == 1);
  }
}

TEST_CASE("interleaved 1F1B keeps p + (p - 1) / v micro-batches of a rank's share, looped_bfs all",
          "[generators]") {
  for (int p = 1; p <= 5; ++p) {
    for (int v = 1; v <= 4; ++v) {
      for (const int m : {p, 2 * p, 4 * p}) {
        const ScheduleRequest request{Placement::looped(p, v), {m}};
        const auto most_on_first_rank = [&](const char* name) {
          int now = 0;
          int most = 0;
          const ScheduleProgram program = find_schedule(name).generate(request);
          for (const Action& a : program.ranks[0]) {
            now += a.op == Op::forward ? 1 : a.op == Op::backward ? -1 : 0;
            most = std::max(most, now);
          }
          return most;
        };
        CAPTURE(p, v, m);
        // In units of 1/v of a rank's share; p v + p - 1 where there are that many to keep.
        const int first = v == 1 ? p : p * v + p - 1;
        CHECK(most_on_first_rank("interleaved_1f1b") == std::min(m * v, first));
        CHECK(most_on_first_rank("looped_bfs") == m * v);
      }
    }
  }
}

TEST_CASE("what cannot be generated is refused with the reason", "[generators]") {
  const auto& pipedream = find_schedule("pipedream");
  const auto& flush = find_schedule("1f1b");
  const Placement two = Placement::straight(2);
  const auto message = [](const auto& call) -> std::string {
    try {
      call();
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  };
  CHECK(message([&] {
          (void)pipedream.generate({.placement = two, .group_sizes = {2}, .clip = true});
        }).find("cannot clip by the global norm") != std::string::npos);
  CHECK(message([&] {
          (void)flush.generate({.placement = two, .group_sizes = {2, 2}});
        }) == "1f1b is synchronous: a program is one step with one group, not 2");
  CHECK(message([&] { (void)flush.generate({.placement = two, .group_sizes = {}}); }) != "");
  CHECK(message([&] { (void)flush.generate({.placement = two, .group_sizes = {0}}); }) ==
        "expected at least 1 micro-batch in each group, found 0");
  CHECK(message([&] { (void)flush.generate({.placement = {}, .group_sizes = {1}}); }) != "");
  CHECK(message([&] {
          (void)flush.generate({.placement = Placement{{{Rank{0}}, {Rank{2}}}}, .group_sizes = {1}});
        }) != "");
  CHECK(message([&] {
          (void)flush.generate({.placement = Placement{{{Rank{0}, Rank{0}}}}, .group_sizes = {1}});
        }) == "stage 0 has the same rank twice");
  CHECK(message([&] { (void)validation_program(two, 0); }) != "");
  CHECK(message([&] {
          (void)find_schedule("1f1", {"run.json", "/pipeline/schedule"});
        }).find("found \"1f1\"; did you mean \"1f1b\"?") != std::string::npos);
  for (const char* name : {"zb_v", "v_half", "v_min"}) {
    for (const int passes : {1, 3}) {
      CAPTURE(name, passes);
      CHECK(message([&] {
              (void)find_schedule(name).generate(
                  {.placement = Placement::zigzag(4, passes), .group_sizes = {8}});
            })
                .find(fmt::format("two stages on every rank, in a V: down the ranks and back up. Of these {} "
                                  "stages the first pass goes over 4 ranks",
                                  4 * passes)) != std::string::npos);
    }
  }
}

}  // namespace stagecraft
