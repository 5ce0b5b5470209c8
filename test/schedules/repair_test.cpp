#include "schedules/repair/repair.h"

#include "schedules/generators/registry.h"
#include "schedules/lowering/lowering.h"
#include "schedules/program/program_text.h"
#include "test/schedules/interpreter.h"
#include "test/schedules/program_grid.h"
#include "test/schedules/random_programs.h"
#include "test/support/catch.h"

#include <fmt/ranges.h>

#include <algorithm>

namespace stagecraft {
namespace {

ScheduleProgram from_lines(const std::string& stages, const std::string& groups, const std::string& ranks) {
  return program_from_text("stagecraft program 1\nstages " + stages + "\ngroups " + groups + "\n" + ranks,
                           "test.txt");
}

std::string told(const Repair& repair) { return fmt::format("{}", fmt::join(repair.changes, "\n")); }

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// The order that no repair may touch.
std::vector<std::vector<Action>> computation(const std::vector<std::vector<Action>>& ranks) {
  std::vector<std::vector<Action>> plain(ranks.size());
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    for (Action a : ranks[r]) {
      a.slot = {};
      if (is_compute(a.op) || a.op == Op::reduce || a.op == Op::agree_norm || a.op == Op::step)
        plain[r].push_back(a);
    }
  }
  return plain;
}

LoweredProgram one_f_one_b() {
  return lower(find_schedule("1f1b").generate({.placement = Placement::straight(2), .group_sizes = {4}}));
}

/// Receives posted only where they are waited for.
LoweredProgram posted_late(LoweredProgram program) {
  for (auto& list : program.ranks) {
    std::vector<Action> late;
    for (const Action& action : list) {
      if (action.op == Op::post_receive) continue;
      if (action.op == Op::wait_receive) {
        late.push_back(action);
        late.back().op = Op::post_receive;
      }
      late.push_back(action);
    }
    list = late;
  }
  return program;
}

}  // namespace

TEST_CASE("what is accepted is left alone", "[repair]") {
  const LoweredProgram good = one_f_one_b();
  const Repair same = repair(good);
  CHECK(same.program == good);
  CHECK(same.changes.empty());
  CHECK(same.proof.accepted());
}

TEST_CASE("receives posted too late are posted earlier", "[repair]") {
  const LoweredProgram good = one_f_one_b();
  const LoweredProgram late = posted_late(good);
  REQUIRE_FALSE(check(late).accepted());
  const Repair repaired = repair(late);
  INFO(told(repaired));
  CHECK(repaired.proof.accepted());
  CHECK(repaired.program == good);  // as lowering does it
  CHECK(contains(told(repaired), "rank 0: posts of receives of gradient from stage 1 to stage 0: 4 earlier"));
  CHECK(
      contains(told(repaired), "rank 1: posts of receives of activation from stage 0 to stage 1: 4 earlier"));
}

TEST_CASE("doubled posts are merged, missing waits and slots added", "[repair]") {
  LoweredProgram bad = one_f_one_b();
  SECTION("a post twice") {
    const Action post = *std::find_if(bad.ranks[1].begin(), bad.ranks[1].end(),
                                      [](const Action& a) { return a.op == Op::post_receive; });
    bad.ranks[1].push_back(post);
    const Repair repaired = repair(bad);
    CHECK(repaired.proof.accepted());
    CHECK(repaired.changes ==
          std::vector<std::string>{"rank 1: posts of receives of activation from stage 0 to stage "
                                   "1: 1 repeated, and merged with the first"});
  }
  SECTION("no waits for sends") {
    std::erase_if(bad.ranks[0], [](const Action& a) { return a.op == Op::wait_send; });
    const Repair repaired = repair(bad);
    CHECK(repaired.proof.accepted());
    CHECK(repaired.changes ==
          std::vector<std::string>{"rank 0: waits for sends of activation from stage 0 to stage 1: 4 added"});
  }
  SECTION("no slots") {
    for (auto& slots : bad.slots) slots.clear();
    const Repair repaired = repair(bad);
    CHECK(repaired.proof.accepted());
    CHECK(contains(told(repaired), "slots for activation from stage 0 to stage 1 instead of 0"));
  }
}

TEST_CASE("a channel gets the slots that its order needs", "[repair]") {
  // Rank 1 takes micro-batch 1 of a validation first; with one slot micro-batch 0 is in its way.
  const auto schedule = from_lines("0 1 2", "2",
                                   "rank 0: L0 F0 L1 F1 B0 B1 S0 P0\nrank 1: F0 F1 B0 B1 S0\n"
                                   "rank 2: L0 F0 L1 F1 P0 B0 B1 S0\n");
  LoweredProgram bad = lower(schedule);
  REQUIRE(check(bad).accepted());
  // One slot for all activations of rank 1, which keeps two.
  for (auto& list : bad.ranks) {
    for (Action& a : list) {
      if (a.slot.valid()) a.slot = Slot{0};
    }
  }
  const Repair repaired = repair(bad);
  INFO(told(repaired));
  CHECK(repaired.proof.accepted());
  CHECK(repaired.program == lower(schedule));
}

TEST_CASE("loads and reports of a schedule are put right", "[repair]") {
  const auto schedule = from_lines("0 1", "2",
                                   "rank 0: F0 L0 L1 F1 B0 B1 S0 P0\n"
                                   "rank 1: L0 F0 B0 F1 P0 B1 S0\n");
  REQUIRE_FALSE(check(lower(schedule)).accepted());
  const Repair repaired = repair(schedule);
  INFO(told(repaired));
  CHECK(repaired.proof.accepted());
  CHECK(repaired.changes ==
        std::vector<std::string>{"rank 0: the load of micro-batch 0 on stage 0 is moved before its forward",
                                 "rank 1: the load of micro-batch 1 on stage 1 is added before its forward"});
  CHECK(computation(repaired.schedule.ranks) == computation(schedule.ranks));
}

TEST_CASE("an order of computation that waits in a circle cannot be repaired, and it is said", "[repair]") {
  const auto schedule =
      from_lines("0 1", "2", "rank 0: L0 F0 B0 L1 F1 B1 S0 P0\nrank 1: L0 F0 L1 F1 P0 B0 B1 S0\n");
  for (const Repair& tried : {repair(schedule), repair(lower(schedule))}) {
    CHECK_FALSE(tried.proof.accepted());
    INFO(tried.why_not);
    CHECK(contains(tried.why_not, "the order of computation itself waits in a circle"));
    CHECK(contains(tried.why_not, "no number of receive slots helps"));
  }
  LoweredProgram none = lower(schedule);
  none.slots.clear();
  CHECK(contains(repair(none).why_not, "there is no such program"));
}

TEST_CASE("transfers broken anyhow are repaired, and the program computes what it did", "[repair]") {
  int broken = 0;
  CHECK(rc::check([&] {
    const LoweredProgram good = lower(random_program().program);
    LoweredProgram bad = good;
    for (int changes = *rc::gen::inRange(1, 8); changes > 0; --changes) {
      auto& list = bad.ranks[*rc::gen::inRange<std::size_t>(0, bad.ranks.size())];
      std::vector<std::size_t> places;
      for (std::size_t i = 0; i < list.size(); ++i) {
        if (is_transfer(list[i].op) || list[i].op == Op::release) places.push_back(i);
      }
      if (places.empty()) continue;
      const std::size_t at = *rc::gen::elementOf(places);
      const auto here = list.begin() + static_cast<std::ptrdiff_t>(at);
      switch (*rc::gen::inRange(0, 4)) {
        case 0:
          list.erase(here);
          break;
        case 1:
          list.insert(here, *here);
          break;
        case 2:
          here->slot = Slot{*rc::gen::inRange(0, 4)};
          break;
        default: {
          const Action moved = *here;
          list.erase(here);
          list.insert(
              list.begin() + static_cast<std::ptrdiff_t>(*rc::gen::inRange<std::size_t>(0, list.size() + 1)),
              moved);
        }
      }
    }
    broken += check(bad).accepted() ? 0 : 1;
    const Repair repaired = repair(bad);
    RC_ASSERT(repaired.proof.accepted());
    RC_ASSERT(computation(repaired.program.ranks) == computation(good.ranks));
    RC_ASSERT(test::interpret(repaired.program, 1) == test::interpret(good, 1));
    RC_ASSERT(check(bad).accepted() == (repaired.program == bad));
  }));
  INFO(broken << " were refused before");
  CHECK(broken >= 20);
}

}  // namespace stagecraft
