#include "schedules/synthesis/synthesis.h"

#include "base/draws.h"
#include "schedules/checker/checker.h"
#include "schedules/generators/library.h"
#include "schedules/generators/registry.h"
#include "schedules/lowering/lowering.h"
#include "schedules/simulator/simulator.h"
#include "schedules/synthesis/critical_search.h"
#include "schedules/synthesis/order_graph.h"
#include "schedules/synthesis/peak_memory.h"
#include "schedules/synthesis/pricing.h"
#include "schedules/synthesis/seeds.h"
#include "test/schedules/random_costs.h"
#include "test/schedules/synthesis_cases.h"
#include "test/support/catch.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace stagecraft {
namespace {

using synthesis::Pricing;
using synthesis::Problem;
using Case = test::SynthesisCase;
using test::brute_force;
using test::most;

constexpr std::int64_t kSmallWork = 30'000;

}  // namespace

TEST_CASE("orders are priced as the simulator prices their programs", "[synthesis]") {
  int compared = 0;
  int shorter = 0;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const Case c(seed, seed % 4 != 0);
    const Problem problem = c.problem();
    Pricing pricing(problem);
    for (const ScheduleProgram& program : c.library()) {
      const Orders orders = synthesis::orders_of(program);
      if (!well_formed(problem, orders)) continue;
      INFO(fmt::format("seed {}, {}", seed, program.schedule));
      const LoweredProgram lowered = lower(program);
      const synthesis::Price price = pricing.run(orders);
      CHECK(price.makespan == simulate(lowered, c.costs).makespan.value);
      CHECK(price.seconds >= test::step_of(lowered, c.costs).value * (1 - 1e-12));
      CHECK(price.seconds <= price.makespan);
      shorter += price.seconds < price.makespan ? 1 : 0;
      ++compared;
    }
  }
  CHECK(compared > 350);
  CHECK(shorter > 20);
}

TEST_CASE("moves along the critical path deadlock nothing and never make a result worse", "[synthesis]") {
  int estimated = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const Case c(seed, seed % 4 != 0);
    const Problem problem = c.problem();
    Pricing pricing(problem);
    for (const ScheduleProgram& program : c.library()) {
      const Orders orders = synthesis::orders_of(program);
      if (!well_formed(problem, orders)) continue;
      INFO(fmt::format("seed {}, {}", seed, program.schedule));
      const synthesis::Found start{orders, pricing.run(orders)};
      synthesis::OrderGraph graph(problem);
      graph.take(orders);
      REQUIRE(graph.settle());
      Draws draws(seed + 1);
      for (int k = 0; k < 20; ++k) {
        const std::size_t rank = draws.below(orders.size());
        const std::size_t length = graph.order(rank).size();
        const std::size_t from = draws.below(length);
        const std::size_t to = graph.reach(rank, from, draws.below(length));
        const double estimate = graph.estimate(rank, from, to);
        graph.move(rank, from, to);
        if (any_recompute(c.recompute) && !graph.evaluate()) break;
        REQUIRE(graph.evaluate());
        // Of neighbours neither waits for the other by way of other ranks.
        if (from + 1 == to || to + 1 == from) {
          CHECK(estimate <= graph.seconds() + 1e-9);
          ++estimated;
        }
      }
      if (!any_recompute(c.recompute)) CHECK(well_formed(problem, graph.orders()));
      const auto found =
          synthesis::critical_search(problem, pricing, start, {.work = kSmallWork, .draws = seed});
      CHECK(well_formed(problem, found.orders));
      CHECK(found.price.seconds <= start.price.seconds);
      CHECK(pricing.run(found.orders).makespan == found.price.makespan);
    }
  }
  CHECK(estimated > 500);
}

TEST_CASE("a price does not depend on what was priced before", "[synthesis]") {
  int compared = 0;
  int stuck = 0;
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    const Case c(seed);
    const Problem problem = c.problem();
    test::RandomCosts random(seed);
    Pricing pricing(problem);
    for (const ScheduleProgram& program : c.library()) {
      Orders orders = synthesis::orders_of(program);
      if (!well_formed(problem, orders)) continue;
      for (int change = 0; change < 20; ++change) {
        const Orders before = orders;
        auto& order = orders[static_cast<std::size_t>(random.between(0, problem.ranks() - 1))];
        if (order.size() < 2) continue;
        auto at = static_cast<std::size_t>(random.between(0, static_cast<int>(order.size()) - 2));
        for (; at + 1 < order.size() && !synthesis::ordered(order[at], order[at + 1]); ++at)
          std::swap(order[at], order[at + 1]);
        const std::int64_t work = pricing.work();
        const synthesis::Price price = pricing.run(orders);
        Pricing fresh(problem);
        const synthesis::Price& expected = fresh.run(orders);
        INFO(fmt::format("seed {}, {}, change {}", seed, program.schedule, change));
        CHECK(price.makespan == expected.makespan);
        CHECK(price.seconds == expected.seconds);
        CHECK(price.mean_end == expected.mean_end);
        CHECK(pricing.extra_slots() == fresh.extra_slots());
        CHECK(pricing.work() - work == fresh.work());
        for (int r = 0; price.finishes() && r < problem.ranks(); ++r) {
          CHECK(pricing.begins(Rank{r}) == fresh.begins(Rank{r}));
          CHECK(pricing.ends(Rank{r}) == fresh.ends(Rank{r}));
        }
        ++compared;
        stuck += price.finishes() ? 0 : 1;
        if (!price.finishes() || random.coin()) orders = before;  // most often as a search does
      }
    }
  }
  INFO(compared << " compared, " << stuck << " deadlock");
  CHECK(compared > 1000);
  CHECK(stuck > 50);
}

TEST_CASE("an order's memory is the proof's", "[synthesis]") {
  int compared = 0;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const Case c(seed);
    const Problem problem = c.problem();
    Pricing pricing(problem);
    for (const ScheduleProgram& program : c.library()) {
      const LoweredProgram lowered = lower(program);
      const Orders orders = synthesis::orders_of(program);
      if (!well_formed(problem, orders)) continue;
      (void)pricing.run(orders);
      INFO(fmt::format("seed {}, {}, {} extra slots", seed, program.schedule, pricing.extra_slots()));
      for (const MemoryProof& rank : prove(lowered, &c.costs).memory) {
        INFO("rank " << rank.rank.value << " at " << rank.at);
        CHECK(synthesis::peak_memory(problem, rank.rank, orders[rank.rank.index()], pricing.extra_slots())
                  .value == rank.peak.value);
        synthesis::PeakMemory memory(problem, rank.rank);
        Bytes before = memory.peak(pricing.extra_slots());
        bool falls = false;
        for (const Compute& compute : orders[rank.rank.index()]) {
          const Bytes usual = memory.peak();
          const bool higher = memory.take(compute);
          if (memory.peak() > usual) CHECK(higher);
          falls = falls || memory.peak(pricing.extra_slots()) < before;
          before = memory.peak(pricing.extra_slots());
        }
        CHECK_FALSE(falls);
        CHECK(before.value == rank.peak.value);
        ++compared;
      }
    }
  }
  CHECK(compared > 350);
}

TEST_CASE("synthesis is proved within the cap and never behind the library", "[synthesis]") {
  int capped = 0;
  int impossible = 0;
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    const Case c(1000 + seed);
    const Bytes peak = test::peak_of_1f1b(c.placement, c.micro_batches, c.costs);
    for (const int percent : {100, 75, 50}) {
      SynthesisRequest request{.placement = c.placement, .micro_batches = c.micro_batches, .costs = &c.costs};
      request.recompute = c.recompute;
      request.capacity = Bytes{peak.value * percent / 100};
      request.budget.work = kSmallWork;
      const Synthesis found = synthesize_over_schedules(request);
      INFO(fmt::format("seed {}, {} %, from {}", seed, percent, found.from));
      const LoweredProgram lowered = lower(found.program);
      const Proof proof = check(lowered, &c.costs, request.capacity);
      CHECK(proof.accepted() == found.fits);
      CHECK(test::step_of(lowered, c.costs) == found.step);
      CHECK(found.program.schedule == "auto");
      for (const LibraryResult& one : found.library) {
        if (one.fits) {
          CHECK(found.fits);
          CHECK(found.step <= one.step);
        }
      }
      if (found.fits) CHECK_FALSE(found.impossible);
      // What a recompute brings back is not counted by the least memory: there may be no proof.
      if (c.recompute.empty()) CHECK(found.fits != found.impossible.has_value());
      if (found.impossible) {
        CHECK(found.impossible->needs > *request.capacity);
        CHECK(proof.memory[found.impossible->rank.index()].peak >= found.impossible->needs);
        ++impossible;
      }
      if (!found.fits) continue;
      // Its own peak is the tightest cap that it is within.
      CHECK(lower_bound(c.problem(most(proof))).seconds <= found.step.value * (1 + 1e-9));
      CHECK(found.bound.seconds <= found.step.value * (1 + 1e-9));
      ++capped;
    }
  }
  CHECK(capped > 45);
  CHECK(impossible > 5);
}

TEST_CASE("the same request gives the same program", "[synthesis]") {
  const Case c(7);
  SynthesisRequest request{.placement = c.placement, .micro_batches = 6, .costs = &c.costs};
  request.budget.work = kSmallWork;
  const Synthesis first = synthesize_over_schedules(request);
  const Synthesis second = synthesize_over_schedules(request);
  CHECK(first.program == second.program);
  CHECK(first.orders == second.orders);
}

TEST_CASE("stages with replicas, of unequal widths too, are proved and never behind the library",
          "[synthesis]") {
  const auto wide = [](const std::vector<int>& widths) {
    Placement placement;
    int next = 0;
    for (const int replicas : widths) {
      auto& ranks = placement.ranks.emplace_back();
      for (int i = 0; i < replicas; ++i) ranks.emplace_back(next++);
    }
    return placement;
  };
  int capped = 0;
  int compared = 0;
  std::uint64_t seed = 2000;
  for (const auto& widths :
       std::vector<std::vector<int>>{{2, 1}, {1, 2}, {2, 2}, {2, 3}, {3, 1, 2}, {1, 1, 2}}) {
    const Placement placement = wide(widths);
    for (const int micro_batches : {3, 4, 7}) {
      const CostTable costs = test::RandomCosts(++seed).table(placement.stages(), placement.world(), true);
      const Bytes peak = test::peak_of_1f1b(placement, micro_batches, costs);
      for (const int percent : {0, 100, 70}) {
        SynthesisRequest request{.placement = placement, .micro_batches = micro_batches, .costs = &costs};
        if (percent > 0) request.capacity = Bytes{peak.value * percent / 100};
        request.budget.work = kSmallWork;
        const Synthesis found = synthesize_over_schedules(request);
        INFO(fmt::format("widths {}, {} micro-batches, {} %, from {}", widths.size(), micro_batches, percent,
                         found.from));
        const LoweredProgram lowered = lower(found.program);
        CHECK(check(lowered, &costs, request.capacity).accepted() == found.fits);
        CHECK(test::step_of(lowered, costs) == found.step);
        CHECK(found.fits != found.impossible.has_value());
        for (const LibraryResult& one : found.library) {
          if (one.fits) CHECK((found.fits && found.step <= one.step));
          compared += one.fits;
        }
        if (!found.fits) continue;
        CHECK(found.bound.seconds <= found.step.value * (1 + 1e-9));
        capped += percent > 0;
      }
    }
  }
  CHECK(compared > 100);
  CHECK(capped > 20);
}

TEST_CASE("a search stops when it is told to", "[synthesis]") {
  Case c(11);
  c.placement = Placement::straight(4);
  c.costs = test::RandomCosts(5).table(4, 4, true);
  SynthesisRequest request{.placement = c.placement, .micro_batches = 12, .costs = &c.costs};
  request.capacity = test::peak_of_1f1b(c.placement, 12, c.costs);
  request.budget.work = std::int64_t{1} << 60;
  int asked = 0;
  request.budget.go_on = [&](Seconds) { return ++asked < 3; };
  const Synthesis found = synthesize_over_schedules(request);
  CHECK(asked == 3);
  CHECK(found.fits);
}

TEST_CASE("of two stages and few micro-batches the best order is found, or one near it", "[synthesis]") {
  int cases = 0;
  int best = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const CostTable costs = test::RandomCosts(seed).table(2, 2, true);
    const Placement placement = Placement::straight(2);
    const int micro_batches = 2 + static_cast<int>(seed / 4 % 2);
    std::optional<Bytes> capacity;
    const std::int64_t percent = std::array{0, 100, 75, 50}[seed % 4];
    if (percent > 0)
      capacity = Bytes{test::peak_of_1f1b(placement, micro_batches, costs).value * percent / 100};
    const double least = brute_force(Problem(placement, micro_batches, false, costs, capacity));
    SynthesisRequest request{.placement = placement, .micro_batches = micro_batches, .costs = &costs};
    request.capacity = capacity;
    request.budget.work = kSmallWork;
    const Synthesis found = synthesize_over_schedules(request);
    INFO(fmt::format("seed {}: {} against {}", seed, found.step.value, least));
    if (!found.fits) continue;
    // Better than all is possible: with a backward in one piece, and where the price of an order is only the most
    // that it takes.
    CHECK(found.bound.seconds <= std::min(least, found.step.value) * (1 + 1e-9));
    ++cases;
    best += found.step.value <= least * (1 + 1e-9);
  }
  INFO(fmt::format("{} of {}", best, cases));
  CHECK(cases >= 25);
  CHECK(best == cases);
}

TEST_CASE("auto takes any placement, without costs too", "[synthesis]") {
  for (const Placement& placement :
       {Placement::straight(1), Placement::straight(3), Placement::looped(2, 2), Placement::zigzag(3, 2)}) {
    const auto program = find_schedule("auto").generate({.placement = placement, .group_sizes = {5}});
    CHECK(check(lower(program)).accepted());
  }
  CHECK_THROWS_AS(
      find_schedule("auto").generate({.placement = Placement::straight(2), .group_sizes = {2, 2}}),
      InputError);
}

}  // namespace stagecraft
