// List scheduling on its own: orders for any costs and any memory that one micro-batch fits in are proved by
// the checker, keep within the memory, and take the time the simulator says.

#include "schedules/list_scheduling/list_scheduler.h"

#include "schedules/checker/checker.h"
#include "schedules/generators/assembly.h"
#include "schedules/list_scheduling/due_order.h"
#include "schedules/list_scheduling/policy_search.h"
#include "schedules/list_scheduling/rank_clocks.h"
#include "schedules/lowering/lowering.h"
#include "schedules/program/step_program.h"
#include "schedules/simulator/simulator.h"
#include "test/schedules/random_programs.h"
#include "test/support/catch.h"

#include <rapidcheck.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

namespace stagecraft {
namespace {

CostTable random_costs(const Placement& placement) {
  CostTable costs;
  for (int s = 0; s < placement.stages(); ++s) {
    StageCosts& stage = costs.stages.emplace_back();
    stage.forward = Seconds{*rc::gen::inRange(0, 9) / 4.0};
    stage.backward_input = Seconds{*rc::gen::inRange(0, 9) / 4.0};
    stage.backward_weight = Seconds{*rc::gen::inRange(0, 9) / 4.0};
    stage.input = Bytes{*rc::gen::inRange(0, 9)};
    if (s > 0) costs.stages[static_cast<std::size_t>(s) - 1].output = stage.input;
  }
  // Losses, which the orders know nothing of, travel in no time.
  costs.loss = Bytes{0};
  costs.network.levels = {{placement.world(), Link{Seconds{0}, 4}}};
  return costs;
}

/// What one micro-batch needs on each rank, and now and then more.
KeepLimit random_limit(const Placement& placement, int micro_batches) {
  KeepLimit limit = stage_limit(placement, 0);
  for (std::size_t s = 0; s < placement.ranks.size(); ++s) {
    limit.forward[s] = *rc::gen::inRange(0, 6);
    limit.weight[s] = *rc::gen::inRange<std::int64_t>(0, limit.forward[s] + 1);
  }
  for (std::size_t r = 0; r < limit.capacity.size(); ++r) {
    std::int64_t most = 0;
    for (int mb = 0; mb < micro_batches; ++mb) {
      std::int64_t need = 0;
      for (int s = 0; s < placement.stages(); ++s) {
        if (placement.rank_of(StageId{s}, MicroBatch{mb}) == Rank{r})
          need += limit.forward[static_cast<std::size_t>(s)];
      }
      most = std::max(most, need);
    }
    limit.capacity[r] = most + *rc::gen::inRange(0, 8);
  }
  return limit;
}

bool within(const Orders& orders, const KeepLimit& limit) {
  for (std::size_t r = 0; r < orders.size(); ++r) {
    std::int64_t held = 0;
    for (const Compute& compute : orders[r]) {
      const std::int64_t forward = limit.forward[compute.stage.index()];
      const std::int64_t weight = limit.weight[compute.stage.index()];
      held += compute.op == Op::forward          ? forward
              : compute.op == Op::backward_input ? weight - forward
                                                 : -weight;
      if (held > limit.capacity[r]) return false;
    }
  }
  return true;
}

bool same(const Orders& a, const Orders& b) {
  const auto equal = [](const Compute& x, const Compute& y) {
    return x.op == y.op && x.stage == y.stage && x.micro_batch == y.micro_batch;
  };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](const auto& x, const auto& y) {
    return std::equal(x.begin(), x.end(), y.begin(), y.end(), equal);
  });
}

}  // namespace

TEST_CASE("orders by what is due are proved, and keep within the memory", "[list_scheduler]") {
  int made = 0;
  REQUIRE(rc::check([&] {
    const Placement placement = *rc::gen::arbitrary<bool>() ? random_widths(4) : random_shared();
    const int m = *rc::gen::inRange(1, 12);
    const CostTable costs = random_costs(placement);
    const Workload workload = workload_of({.placement = placement,
                                           .micro_batches = m,
                                           .costs = &costs,
                                           .goes_on = *rc::gen::arbitrary<bool>()});
    const KeepLimit limit = random_limit(placement, m);
    Priorities due = by_rule(workload, {0, 0, 0, *rc::gen::inRange(0, 2)});
    if (*rc::gen::arbitrary<bool>()) {
      for (Ticks& one : due.forward) one += *rc::gen::inRange(0, 4 * placement.stages());
    }
    const Policy policy{.priorities = due,
                        .share = std::vector<int>(placement.ranks.size(), *rc::gen::inRange(1, 5)),
                        .patience = *rc::gen::inRange(0, 151)};
    const auto schedule = due_order_within(workload, limit, policy, kNever);
    if (!schedule) return;
    ++made;
    RC_ASSERT(within(schedule->orders, limit));
    RC_ASSERT(*replay(workload, schedule->orders) == schedule->value);
    RC_ASSERT(due_order_within(workload, limit, policy, schedule->value.step).has_value());
    if (schedule->value.step > 0)
      RC_ASSERT(!due_order_within(workload, limit, policy, schedule->value.step - 1).has_value());
    const auto program = synchronous_program(ProgramHeader{"custom", SegmentKind::train, placement, {m}},
                                             schedule->orders, false);
    RC_ASSERT(check(lower(program, {.extra_slots = m, .sends_in_flight = 2 * m})).accepted());
  }));
  CHECK(made > 30);
}

TEST_CASE("list schedules never deadlock and keep within the memory", "[list_scheduler]") {
  REQUIRE(rc::check([] {
    ScheduleRequest request{.placement = *rc::gen::arbitrary<bool>() ? random_widths(4) : random_shared(),
                            .group_sizes = {*rc::gen::inRange(1, 12)},
                            .clip = *rc::gen::arbitrary<bool>()};
    const int m = request.group_sizes[0];
    const CostTable costs = random_costs(request.placement);
    request.costs = &costs;
    request.recompute = *rc::gen::container<RecomputeSettings>(
        request.placement.ranks.size(),
        rc::gen::element(Recompute::none, Recompute::all, Recompute::all_but_last));
    const Workload workload = workload_of(workload_request(request));
    const KeepLimit limit = random_limit(request.placement, m);
    Policy policy{.patience = *rc::gen::inRange(0, 151)};
    const auto actions = request.placement.ranks.size() * static_cast<std::size_t>(m);
    for (auto* of_kind : {&policy.priorities.forward, &policy.priorities.input, &policy.priorities.weight}) {
      *of_kind = *rc::gen::container<std::vector<Ticks>>(actions, rc::gen::inRange<Ticks>(0, 20));
    }
    if (*rc::gen::arbitrary<bool>()) {
      policy.share =
          *rc::gen::container<std::vector<int>>(request.placement.ranks.size(), rc::gen::inRange(1, 5));
    }
    const Orders orders = list_schedule(workload, limit, policy);
    RC_ASSERT(within(orders, limit));
    const auto value = replay(workload, orders);
    RC_ASSERT(value);
    // Given up just below its makespan, and not before.
    const auto timely = list_schedule_within(workload, limit, policy, value->step);
    RC_ASSERT(timely.has_value());
    RC_ASSERT(timely->value == *value);
    RC_ASSERT(same(timely->orders, orders));
    if (value->step > 0)
      RC_ASSERT(!list_schedule_within(workload, limit, policy, value->step - 1).has_value());
    auto program = synchronous_program(ProgramHeader{"custom", SegmentKind::train, request.placement, {m}},
                                       orders, false);
    insert_recomputes(program, request.recompute);
    const LoweredProgram lowered = lower(program, {.extra_slots = m, .sends_in_flight = 2 * m});
    RC_ASSERT(check(lowered).accepted());
    // With room for every transfer the simulator's time is the replay's: both go by the same model.
    if (request.placement.world() > 1) {
      const double unit = costs.stages[0].forward.value;
      const Ticks ticks = workload.times[0][0].forward;
      const double makespan = simulate(lowered, costs).makespan.value;
      if (ticks > 0) {
        const Ticks last = workload.goes_on ? value->other : value->step;
        const double replayed = static_cast<double>(last) * unit / static_cast<double>(ticks);
        RC_ASSERT(std::abs(replayed - makespan) < 1e-6 * (1 + makespan));
      }
    }
    RC_ASSERT(within(best_orders(workload, limit, {orders}), limit));
    for (const ListSchedule& found : search_policies(workload, limit, {.schedules = 12, .seeds = {orders}})) {
      RC_ASSERT(within(found.orders, limit));
      RC_ASSERT(*replay(workload, found.orders) == found.value);
    }
    RC_ASSERT(*replay(workload, best_orders(workload, limit, {orders})) <= *value);
    RC_ASSERT(best_orders(workload, limit).size() == orders.size());
  }));
}

TEST_CASE("a list schedule is given up when it is told to be", "[list_scheduler]") {
  REQUIRE(rc::check([&] {
    const Placement placement = random_shared();
    const int m = *rc::gen::inRange(1, 12);
    const CostTable costs = random_costs(placement);
    const Workload workload = workload_of({.placement = placement, .micro_batches = m, .costs = &costs});
    const KeepLimit limit = random_limit(placement, m);
    const Policy policy{.priorities = by_rule(workload, {0, 1, 1, 2})};
    const Orders orders = list_schedule(workload, limit, policy);
    Orders seen(orders.size());
    const auto whole = list_schedule_while(workload, limit, policy, [&](Rank rank, const Compute& compute) {
      seen[rank.index()].push_back(compute);
      return true;
    });
    RC_ASSERT(whole.has_value());
    RC_ASSERT(same(*whole, orders));
    RC_ASSERT(same(seen, orders));
    int left = *rc::gen::inRange(0, 3 * m);
    const auto part =
        list_schedule_while(workload, limit, policy, [&](Rank, const Compute&) { return left-- > 0; });
    RC_ASSERT(!part.has_value());
    RC_ASSERT(left == -1);
  }));
}

TEST_CASE("the rank that has something to do first is found, of several the first", "[list_scheduler]") {
  REQUIRE(rc::check([] {
    const auto ranks = *rc::gen::inRange<std::size_t>(1, 19);
    Wakeups wakeups(ranks);
    std::vector<Ticks> at(ranks, 0);
    for (int i = 0; i < 60; ++i) {
      const auto first = std::ranges::min_element(at);
      const std::optional<std::size_t> next = wakeups.next();
      if (*first == kNever) {
        RC_ASSERT(!next);
      } else {
        RC_ASSERT(next == static_cast<std::size_t>(first - at.begin()));
        RC_ASSERT(wakeups.take(*next) == *first);
        *first = kNever;
      }
      for (int more = *rc::gen::inRange(0, 3); more > 0; --more) {
        const auto rank = *rc::gen::inRange<std::size_t>(0, ranks);
        const Ticks when = *rc::gen::inRange(0, 9);
        wakeups.at(rank, when);
        at[rank] = std::min(at[rank], when);
      }
    }
  }));
}

TEST_CASE("orders that deadlock have no time", "[list_scheduler]") {
  const Workload workload = workload_of({.placement = Placement::straight(2), .micro_batches = 2});
  const auto all = [](int stage, std::vector<std::pair<Op, int>> list) {
    std::vector<Compute> order;
    for (const auto& [op, mb] : list) order.push_back({op, StageId{stage}, MicroBatch{mb}});
    return order;
  };
  using enum Op;
  const auto first = all(0, {{forward, 0},
                             {backward_input, 0},
                             {backward_weight, 0},
                             {forward, 1},
                             {backward_input, 1},
                             {backward_weight, 1}});
  const auto one_by_one = all(1, {{forward, 0},
                                  {backward_input, 0},
                                  {backward_weight, 0},
                                  {forward, 1},
                                  {backward_input, 1},
                                  {backward_weight, 1}});
  const auto both_first = all(1, {{forward, 0},
                                  {forward, 1},
                                  {backward_input, 0},
                                  {backward_weight, 0},
                                  {backward_input, 1},
                                  {backward_weight, 1}});
  CHECK(replay(workload, {first, both_first}) == std::nullopt);
  const auto value = replay(workload, {first, one_by_one});
  REQUIRE(value);
  // F0 F0' I0' I0 W0, then the same again; W0' runs beside I0. The unit is one tick of unit costs.
  const Ticks unit = workload.times[0][0].forward;
  CHECK(value->step == 10 * unit);
  CHECK(value->other == 10 * unit);
}

}  // namespace stagecraft
