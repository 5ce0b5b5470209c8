#include "schedules/synthesis/synthesis.h"

#include "schedules/checker.h"
#include "schedules/lowering.h"
#include "schedules/simulator.h"
#include "schedules/synthesis/memory.h"
#include "schedules/synthesis/pricing.h"
#include "schedules/synthesis/seeds.h"
#include "test/schedules/random_costs.h"
#include "test/support/catch.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

namespace stagecraft {
namespace {

using synthesis::Pricing;
using synthesis::Problem;

constexpr std::int64_t kSmallWork = 30'000;

/// A problem on a random placement: straight, a loop or a V.
struct Case {
  Placement placement;
  int micro_batches = 0;
  bool clip = false;
  CostTable costs;
  RecomputeSettings recompute{};

  explicit Case(std::uint64_t seed, bool links = true) {
    test::RandomCosts random(seed);
    const int ranks = random.between(1, 5);
    const int kind = random.between(0, 3);
    placement = kind == 0   ? Placement::straight(ranks)
                : kind == 1 ? Placement::looped(ranks, 2)
                : kind == 2 ? Placement::zigzag(ranks, 2)
                            : Placement::looped(ranks, 3);
    micro_batches = random.between(1, 3 * ranks);
    costs = random.table(placement.stages(), ranks, links);
    if (random.coin()) {
      for (int s = 0; s < placement.stages(); ++s)
        recompute.push_back(static_cast<Recompute>(random.between(0, 2)));
    }
    if (random.coin()) {
      for (int r = 0; r < ranks; ++r) costs.speed.push_back(random.between(0.5, 2.0));
    }
  }
  [[nodiscard]] Problem problem(std::optional<Bytes> capacity = {}) const {
    return Problem(placement, micro_batches, clip, costs, capacity, recompute);
  }
  /// Programs of every synchronous schedule that takes the placement, whole and with split backwards.
  [[nodiscard]] std::vector<ScheduleProgram> library() const {
    std::vector<ScheduleProgram> programs;
    for (const Schedule& schedule : schedules()) {
      if (!schedule.synchronous || schedule.searched) continue;
      try {
        programs.push_back(schedule.generate({.placement = placement,
                                              .group_sizes = {micro_batches},
                                              .clip = clip,
                                              .costs = &costs,
                                              .recompute = recompute}));
      } catch (const InputError&) {  // not for such a placement
      }
    }
    return programs;
  }
};

Bytes most(const Proof& proof) {
  Bytes peak;
  for (const MemoryProof& rank : proof.memory) peak = std::max(peak, rank.peak);
  return peak;
}

/// All orders of `left` on one rank that keep what is ordered in order; `take` sees each.
template <class Take>
void each_order(std::vector<Compute>& left, synthesis::Order& order, const Take& take) {
  if (left.empty()) return take(order);
  for (std::size_t i = 0; i < left.size(); ++i) {
    const bool free = std::none_of(left.begin(), left.begin() + static_cast<std::ptrdiff_t>(i),
                                   [&](const Compute& c) { return synthesis::ordered(c, left[i]); });
    if (!free) continue;
    const Compute chosen = left[i];
    left.erase(left.begin() + static_cast<std::ptrdiff_t>(i));
    order.push_back(chosen);
    each_order(left, order, take);
    order.pop_back();
    left.insert(left.begin() + static_cast<std::ptrdiff_t>(i), chosen);
  }
}

/// The best makespan of all orders of a straight pipeline of two stages, backwards split.
double brute_force(const Problem& problem) {
  std::vector<std::vector<synthesis::Order>> of_rank(2);
  for (int r = 0; r < 2; ++r) {
    std::vector<Compute> computes;
    for (const Op op : {Op::forward, Op::backward_input, Op::backward_weight}) {
      for (int mb = 0; mb < problem.micro_batches(); ++mb)
        computes.push_back({op, StageId{r}, MicroBatch{mb}});
    }
    synthesis::Order order;
    each_order(computes, order, [&](const synthesis::Order& whole) {
      if (problem.capacity() && synthesis::peak_memory(problem, Rank{r}, whole) > *problem.capacity()) return;
      of_rank[static_cast<std::size_t>(r)].push_back(whole);
    });
  }
  Pricing pricing(problem);
  double best = synthesis::kNever;
  Orders orders(2);
  for (const auto& first : of_rank[0]) {
    orders[0] = first;
    for (const auto& second : of_rank[1]) {
      orders[1] = second;
      best = std::min(best, pricing.run(orders).makespan);
    }
  }
  return best;
}

}  // namespace

TEST_CASE("orders are priced as the simulator prices their programs", "[synthesis]") {
  int compared = 0;
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    Case c(seed, seed % 4 != 0);
    const Problem problem = c.problem();
    Pricing pricing(problem);
    for (const ScheduleProgram& program : c.library()) {
      const Orders orders = synthesis::orders_of(program);
      if (!well_formed(problem, orders)) continue;
      INFO(fmt::format("seed {}, {}", seed, program.schedule));
      const LoweredProgram lowered = lower(program, {.slots_for_speed = false});
      CHECK(pricing.run(orders).makespan == simulate(lowered, c.costs).makespan.value);
      ++compared;
    }
  }
  CHECK(compared > 500);
}

TEST_CASE("an order's memory is the proof's", "[synthesis]") {
  int compared = 0;
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    const Case c(seed);
    const Problem problem = c.problem();
    Pricing pricing(problem);
    for (const ScheduleProgram& program : c.library()) {
      const LoweredProgram lowered = lower(program, {.slots_for_speed = false});
      const Orders orders = synthesis::orders_of(program);
      if (!well_formed(problem, orders)) continue;
      (void)pricing.run(orders);
      INFO(fmt::format("seed {}, {}, {} extra slots", seed, program.schedule, pricing.extra_slots()));
      for (const MemoryProof& rank : prove(lowered, &c.costs).memory) {
        INFO("rank " << rank.rank.value << " at " << rank.at);
        CHECK(synthesis::peak_memory(problem, rank.rank, orders[rank.rank.index()], pricing.extra_slots())
                  .value == rank.peak.value);
        ++compared;
      }
    }
  }
  CHECK(compared > 500);
}

TEST_CASE("no schedule is faster than the lower bound, with its own peak as the cap or none", "[synthesis]") {
  int compared = 0;
  int tight = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    Case c(seed, seed % 3 != 0);
    c.clip = seed % 5 == 0;
    for (const ScheduleProgram& program : c.library()) {
      const LoweredProgram lowered = lower(program, {.slots_for_speed = false});
      const double makespan = simulate(lowered, c.costs).makespan.value;
      const Bytes peak = most(prove(lowered, &c.costs));
      for (const std::optional<Bytes>& capacity : {std::optional<Bytes>{}, std::optional<Bytes>{peak}}) {
        const synthesis::LowerBound bound = lower_bound(c.problem(capacity));
        INFO(fmt::format("seed {}, {}, {}", seed, program.schedule, capacity ? "capped" : "free"));
        CHECK(bound.seconds <= makespan * (1 + 1e-9));
        ++compared;
        tight += synthesis::meets(makespan, bound.seconds);
      }
    }
  }
  CHECK(compared > 2000);
  CHECK(tight > 50);  // a bound of nothing would be valid, too
}

TEST_CASE("the bound of memory has a say", "[synthesis]") {
  // Four even stages with room for one micro-batch each: they take turns.
  CostTable costs = test::RandomCosts(1).table(4, 4, false);
  for (StageCosts& stage : costs.stages) {
    stage = {};
    stage.forward = stage.backward_input = stage.backward_weight = Seconds{1};
    stage.kept_for_input = stage.forward_peak = Bytes{100};
  }
  const auto bound = lower_bound(Problem(Placement::straight(4), 6, false, costs, Bytes{150}));
  CHECK(bound.kind == synthesis::LowerBound::Kind::memory);
  CHECK(bound.rank == Rank{0});
  CHECK(bound.seconds == 6 * 8 + 1);
  CHECK(lower_bound(Problem(Placement::straight(4), 6, false, costs, {})).seconds == 3 + 18);
}

TEST_CASE("synthesis is proved within the cap and never behind the library", "[synthesis]") {
  int capped = 0;
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    const Case c(1000 + seed);
    const Bytes peak = test::peak_of_1f1b(c.placement, c.micro_batches, c.costs);
    for (const int percent : {100, 75, 50}) {
      SynthesisRequest request{.placement = c.placement, .micro_batches = c.micro_batches, .costs = &c.costs};
      request.recompute = c.recompute;
      request.capacity = Bytes{peak.value * percent / 100};
      request.budget.work = kSmallWork;
      const Synthesis found = synthesize(request);
      INFO(fmt::format("seed {}, {} %, from {}", seed, percent, found.from));
      const LoweredProgram lowered = lower(found.program);
      const Proof proof = check(lowered, &c.costs, request.capacity);
      CHECK(proof.accepted() == found.fits);
      CHECK(simulate(lowered, c.costs).makespan == found.makespan);
      CHECK(found.program.schedule == "auto");
      for (const LibraryResult& one : found.library) {
        if (one.fits) {
          CHECK(found.fits);
          CHECK(found.makespan <= one.makespan);
        }
      }
      if (!found.fits) continue;
      CHECK(found.bound.seconds <= found.makespan.value * (1 + 1e-9));
      ++capped;
    }
  }
  CHECK(capped > 45);
}

TEST_CASE("the same request gives the same program", "[synthesis]") {
  const Case c(7);
  SynthesisRequest request{.placement = c.placement, .micro_batches = 6, .costs = &c.costs};
  request.budget.work = kSmallWork;
  const Synthesis first = synthesize(request);
  const Synthesis second = synthesize(request);
  CHECK(first.program == second.program);
  CHECK(first.orders == second.orders);
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
  const Synthesis found = synthesize(request);
  CHECK(asked == 3);
  CHECK(found.fits);
}

TEST_CASE("of two stages and few micro-batches the best order is found, or one near it", "[synthesis]") {
  int cases = 0;
  int best = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const CostTable costs = test::RandomCosts(seed).table(2, 2, true);
    const Placement placement = Placement::straight(2);
    const int micro_batches = 2 + static_cast<int>(seed % 2);
    std::optional<Bytes> capacity;
    if (seed % 4 > 1) capacity = test::peak_of_1f1b(placement, micro_batches, costs);
    const double least = brute_force(Problem(placement, micro_batches, false, costs, capacity));
    SynthesisRequest request{.placement = placement, .micro_batches = micro_batches, .costs = &costs};
    request.capacity = capacity;
    request.budget.work = kSmallWork;
    const Synthesis found = synthesize(request);
    INFO(fmt::format("seed {}: {} against {}", seed, found.makespan.value, least));
    if (!found.fits) continue;
    // A backward in one piece may fit where its parts do not; where all orders fit there is nothing below.
    if (!capacity) CHECK(found.makespan.value >= least * (1 - 1e-9));
    CHECK(found.bound.seconds <= least * (1 + 1e-9));
    ++cases;
    best += found.makespan.value <= least * (1 + 1e-9);
  }
  INFO(fmt::format("{} of {}", best, cases));
  CHECK(cases >= 30);
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
