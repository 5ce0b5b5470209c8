#include "schedules/rules/device_waits.h"

#include "schedules/checker/checker.h"
#include "schedules/rules/reductions.h"
#include "test/schedules/program_grid.h"
#include "test/support/catch.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <tuple>
#include <vector>

namespace stagecraft {
namespace {

/// A second opinion, place by place: all hosts but one go on until none can, the one stands still. What it has
/// launched must have met its other ends then.
class Standstill {
 public:
  Standstill(const LoweredProgram& program, bool announced) : program_(program), announced_(announced) {
    for (std::size_t r = 0; r < program.ranks.size(); ++r) {
      std::map<std::tuple<Op, int, int>, std::int32_t> at;
      for (std::size_t i = 0; i < program.ranks[r].size(); ++i) {
        const Action& action = program.ranks[r][i];
        if (action.op != Op::reduce && action.op != Op::tie) continue;
        const std::int32_t join = last_backward_into(program, program.ranks[r], static_cast<std::int32_t>(i));
        at[key(action)] = join < 0 ? static_cast<std::int32_t>(i) : join;
      }
      joins_.push_back(at);
    }
  }

  DeviceWaits count() {
    DeviceWaits found;
    for (std::size_t r = 0; r < program_.ranks.size(); ++r) {
      for (std::size_t n = 0; n < program_.ranks[r].size(); ++n) {
        const Op op = program_.ranks[r][n].op;
        if (!is_compute(op) && op != Op::step) continue;
        ++found.places;
        stand_still(r, n);
        found.receives += receives_wait(r, n) ? 1 : 0;
        found.sends += sends_wait(r, n) ? 1 : 0;
        found.sums += sums_wait(r, n) ? 1 : 0;
      }
    }
    return found;
  }

 private:
  static std::tuple<Op, int, int> key(const Action& action) {
    return {action.op, action.op == Op::tie ? action.tie.value : action.stage.value, action.group.value};
  }
  std::vector<Rank> members(const Action& action) const {
    return action.op == Op::tie ? members_of(program_.placement, program_.ties[action.tie.index()])
                                : members_of(program_.placement, action.op, action.stage);
  }

  void stand_still(std::size_t rank, std::size_t n) {
    at_.assign(program_.ranks.size(), 0);
    sent_.clear();
    posted_.clear();
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t q = 0; q < at_.size(); ++q) {
        const auto& list = program_.ranks[q];
        while (at_[q] < (q == rank ? n : list.size()) && may_pass(list[at_[q]])) {
          const Action& action = list[at_[q]++];
          if (action.op == Op::start_send) sent_.insert(action.tag);
          if (action.op == Op::post_receive) posted_.insert(action.tag);
          moved = true;
        }
      }
    }
  }
  bool may_pass(const Action& action) const {
    if (action.op == Op::wait_receive) return sent_.contains(action.tag);
    if (action.op == Op::wait_send) return posted_.contains(action.tag);
    if (action.op != Op::reduce && action.op != Op::tie && action.op != Op::agree_norm) return true;
    const std::vector<Rank> all = members(action);
    return std::all_of(all.begin(), all.end(), [&](Rank member) {
      const auto& list = program_.ranks[member.index()];
      const auto its = std::find_if(list.begin(), list.end(),
                                    [&](const Action& other) { return key(other) == key(action); });
      return at_[member.index()] >= static_cast<std::size_t>(its - list.begin());
    });
  }

  template <class Ended>
  bool some_wait(std::size_t rank, std::size_t n, Op early, Op late, Ended&& ended) const {
    const auto begin = program_.ranks[rank].begin();
    return std::any_of(begin, begin + static_cast<std::ptrdiff_t>(n), [&](const Action& action) {
      return action.op == (announced_ ? late : early) && !ended(action.tag);
    });
  }
  bool receives_wait(std::size_t rank, std::size_t n) const {
    return some_wait(rank, n, Op::post_receive, Op::wait_receive,
                     [&](const Tag& tag) { return sent_.contains(tag); });
  }
  bool sends_wait(std::size_t rank, std::size_t n) const {
    return some_wait(rank, n, Op::start_send, Op::wait_send,
                     [&](const Tag& tag) { return posted_.contains(tag); });
  }
  bool sums_wait(std::size_t rank, std::size_t n) const {
    const auto& list = program_.ranks[rank];
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (list[i].op != Op::reduce && list[i].op != Op::tie) continue;
      const std::size_t from = announced_ ? i : static_cast<std::size_t>(joins_[rank].at(key(list[i])));
      if (from >= n) continue;
      for (const Rank member : members(list[i])) {
        const auto join = static_cast<std::size_t>(joins_[member.index()].at(key(list[i])));
        if (member.index() != rank && at_[member.index()] <= join) return true;
      }
    }
    return false;
  }

  const LoweredProgram& program_;
  bool announced_;
  std::vector<std::map<std::tuple<Op, int, int>, std::int32_t>> joins_;
  std::vector<std::size_t> at_;
  std::set<Tag> sent_, posted_;
};

/// Each receive as late as it may be: right before its wait, where a sender may be kept longest.
LoweredProgram posted_at_waits(LoweredProgram program) {
  for (auto& list : program.ranks) {
    std::map<Tag, Action> posts;
    std::vector<Action> late;
    for (const Action& action : list) {
      if (action.op == Op::post_receive) {
        posts[action.tag] = action;
        continue;
      }
      if (action.op == Op::wait_receive) late.push_back(posts.at(action.tag));
      late.push_back(action);
    }
    list = std::move(late);
  }
  return program;
}

/// Counts of all programs that were compared.
struct Compared {
  int programs = 0;
  int unsafe = 0;
  DeviceWaits counts;

  void compare(const LoweredProgram& program, bool announced) {
    TransportRules rules = TransportRules::nccl(TransportRules::Channels::boundary);
    rules.announced = announced;
    const Proof proof = check(program, nullptr, std::nullopt, rules);
    if (!proof.accepted()) return;  // receives at their waits may be in another order than sends
    REQUIRE(proof.device_waits);
    const DeviceWaits& waits = *proof.device_waits;
    const DeviceWaits expected = Standstill(program, announced).count();
    CHECK(waits.places == expected.places);
    CHECK(waits.receives == expected.receives);
    CHECK(waits.sends == expected.sends);
    CHECK(waits.sums == expected.sums);
    CHECK(waits.safe() == (expected.receives + expected.sends + expected.sums == 0));
    if (announced) CHECK(waits.safe());
    ++programs;
    unsafe += waits.safe() ? 0 : 1;
    counts.receives += expected.receives;
    counts.sends += expected.sends;
    counts.sums += expected.sums;
  }
};

TEST_CASE("where a wait for the device never ends: as a standstill at every place says", "[device_waits]") {
  std::vector<Placement> placements = test::straight_placements();
  for (const Placement& odd : test::odd_placements()) placements.push_back(odd);
  placements.push_back(test::placement({{0, 1}, {2}, {3}}));
  Compared compared;
  for (const Schedule& schedule : schedules()) {
    for (const Placement& placement : placements) {
      for (const std::vector<int>& groups : std::vector<std::vector<int>>{{8}, {5}, {5, 4}, {4, 4, 4}}) {
        const ScheduleRequest request{.placement = placement, .group_sizes = groups};
        if (!test::serves(schedule, request)) continue;
        const LoweredProgram program = lower(
            schedule.generate(request), {.rules = TransportRules::nccl(TransportRules::Channels::boundary)});
        for (const bool announced : {false, true}) {
          INFO(test::name_of(schedule, request) << (announced ? " announced" : ""));
          compared.compare(program, announced);
          compared.compare(posted_at_waits(program), announced);
        }
      }
    }
  }
  CHECK(compared.programs > 500);
  CHECK(compared.unsafe > 100);
  CHECK(compared.counts.receives > 0);
  CHECK(compared.counts.sends > 0);
}

TEST_CASE("the first compute action of a rank meets its receives: unannounced, a wait there never ends",
          "[device_waits]") {
  for (const char* name : {"fill_drain", "1f1b", "zb_h1"}) {
    TransportRules rules = TransportRules::nccl();
    rules.announced = false;
    const LoweredProgram program =
        lower(find_schedule(name).generate({.placement = Placement::straight(4), .group_sizes = {16}}),
              {.rules = rules});
    const Proof proof = check(program, nullptr, std::nullopt, rules);
    INFO(name);
    REQUIRE(proof.device_waits);
    REQUIRE(proof.device_waits->first);
    CHECK(proof.device_waits->first->rank == Rank{0});
    CHECK(program.action(*proof.device_waits->first).op == Op::forward);
    CHECK(program.action(*proof.device_waits->first).micro_batch == MicroBatch{0});
  }
}

}  // namespace
}  // namespace stagecraft
