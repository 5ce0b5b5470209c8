#include "schedules/lowering/lowering.h"
#include "schedules/simulator/simulator.h"
#include "schedules/synthesis/least_memory.h"
#include "schedules/synthesis/lower_bound.h"
#include "schedules/synthesis/rank_memory.h"
#include "test/schedules/synthesis_cases.h"
#include "test/support/catch.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <vector>

namespace stagecraft {
namespace {

using synthesis::Pricing;
using synthesis::Problem;
using Case = test::SynthesisCase;
using test::most;

/// Orders made by drawing, again and again, one of the computations that could come next. `eager`: how much
/// rather a backward, which frees memory, than a forward.
Orders random_orders(const Problem& problem, test::RandomCosts& random, int eager) {
  Orders orders(static_cast<std::size_t>(problem.ranks()));
  std::vector<synthesis::ReplicaCounts> done(problem.replicas().size());
  // Whether a stage is through with a part of a micro-batch.
  const auto over = [&](int stage, MicroBatch mb, int synthesis::ReplicaCounts::*part) {
    if (stage < 0 || stage >= problem.stages()) return true;
    const std::size_t replica = problem.replica_of(StageId{stage}, mb);
    return done[replica].*part > mb.value / problem.placement().replicas(StageId{stage});
  };
  struct Choice {
    std::size_t replica;
    Compute compute;
  };
  for (;;) {
    std::vector<Choice> choices;
    for (std::size_t i = 0; i < problem.replicas().size(); ++i) {
      const synthesis::TimedReplica& replica = problem.replicas()[i];
      const auto mb = [&](int number) {
        return MicroBatch{replica.replica + number * problem.placement().replicas(replica.stage)};
      };
      const auto& [forwards, inputs, weights] = done[i];
      const int stage = replica.stage.value;
      if (forwards < replica.count && over(stage - 1, mb(forwards), &synthesis::ReplicaCounts::forwards))
        choices.push_back({i, {Op::forward, replica.stage, mb(forwards)}});
      if (inputs < forwards && over(stage + 1, mb(inputs), &synthesis::ReplicaCounts::inputs)) {
        choices.insert(choices.end(), static_cast<std::size_t>(eager),
                       {i, {Op::backward_input, replica.stage, mb(inputs)}});
        if (inputs == weights) choices.push_back({i, {Op::backward, replica.stage, mb(inputs)}});
      }
      if (weights < inputs) {
        choices.insert(choices.end(), static_cast<std::size_t>(eager),
                       {i, {Op::backward_weight, replica.stage, mb(weights)}});
      }
    }
    if (choices.empty()) return orders;
    const auto& [replica, compute] =
        choices[static_cast<std::size_t>(random.between(0, static_cast<int>(choices.size()) - 1))];
    done[replica] = synthesis::RankMemory::after({done[replica]}, 0, compute.op).front();
    orders[problem.replicas()[replica].rank.index()].push_back(compute);
  }
}

}  // namespace

TEST_CASE("no schedule is faster than the lower bound, with its own peak as the cap or none", "[synthesis]") {
  int compared = 0;
  int tight = 0;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    Case c(seed, seed % 3 != 0);
    c.clip = seed % 5 == 0;
    for (const ScheduleProgram& program : c.library()) {
      const LoweredProgram lowered = lower(program);
      const double step = test::step_of(lowered, c.costs, c.clip).value;
      const Bytes peak = most(prove(lowered, &c.costs));
      for (const std::optional<Bytes>& capacity : {std::optional<Bytes>{}, std::optional<Bytes>{peak}}) {
        const synthesis::LowerBound bound = lower_bound(c.problem(capacity));
        INFO(fmt::format("seed {}, {}, {}", seed, program.schedule, capacity ? "capped" : "free"));
        CHECK(bound.seconds <= step * (1 + 1e-9));
        ++compared;
        tight += synthesis::meets(step, bound.seconds);
      }
    }
  }
  CHECK(compared > 700);
  CHECK(tight > 15);  // a bound of nothing would be valid, too
}

TEST_CASE("the bound of memory has a say", "[synthesis]") {
  // Four even stages with room for one micro-batch each: they take turns.
  CostTable costs = test::RandomCosts(1).table(4, 4, false);
  for (StageCosts& stage : costs.stages) {
    stage = {};
    stage.forward = stage.backward_input = stage.backward_weight = Seconds{1};
    stage.kept_for_input = stage.forward_peak = Bytes{100};
  }
  const auto bound = lower_bound(Problem(Placement::straight(4), 6, true, costs, Bytes{150}));
  CHECK(bound.kind == synthesis::LowerBound::Kind::memory);
  CHECK(bound.rank == Rank{0});
  CHECK(bound.seconds == 6 * 8 + 1);
  const auto steady = lower_bound(Problem(Placement::straight(4), 6, false, costs, Bytes{150}));
  CHECK(steady.kind == synthesis::LowerBound::Kind::memory);
  CHECK(steady.seconds > lower_bound(Problem(Placement::straight(4), 6, false, costs, {})).seconds * 1.5);
  CHECK(lower_bound(Problem(Placement::straight(4), 6, true, costs, {})).seconds == 3 + 18);
}

TEST_CASE("no random order is faster than the bound under its own peak, or needs less than the least memory",
          "[synthesis]") {
  int tight = 0;
  int least = 0;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    Case c(seed, seed % 3 != 0);
    c.clip = seed % 2 == 0;
    const Problem free = c.problem();
    test::RandomCosts random(seed);
    const Orders orders = random_orders(free, random, 1 << random.between(0, 6));
    REQUIRE(well_formed(free, orders));
    Pricing pricing(free);
    const synthesis::Price price = pricing.run(orders);
    if (!price.finishes()) continue;
    CHECK(price.seconds <= price.makespan);
    Bytes peak;
    for (std::size_t r = 0; r < orders.size(); ++r) {
      const Bytes of_rank = peak_memory(free, Rank{r}, orders[r], pricing.extra_slots());
      INFO(fmt::format("seed {}, rank {}", seed, r));
      CHECK(least_memory(free, Rank{r}) <= of_rank);
      least += least_memory(free, Rank{r}) == of_rank;
      peak = std::max(peak, of_rank);
    }
    const auto bound = lower_bound(c.problem(peak));
    INFO(fmt::format("seed {}: {} micro-batches, {} stages", seed, c.micro_batches, c.placement.stages()));
    CHECK(bound.seconds <= price.seconds * (1 + 1e-9));
    tight += bound.kind == synthesis::LowerBound::Kind::memory;
  }
  CHECK(tight > 25);
  CHECK(least > 40);
}

TEST_CASE("the least memory is that of the best of all orders", "[synthesis]") {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    const bool v = seed % 3 == 2;
    const Placement placement =
        v ? Placement::zigzag(2, 2) : Placement::straight(2 + static_cast<int>(seed % 3));
    const int micro_batches = v ? 2 : 3;
    const CostTable costs = test::RandomCosts(seed).table(placement.stages(), placement.world(), true);
    const Problem problem(placement, micro_batches, false, costs, {});
    for (int r = 0; r < problem.ranks(); ++r) {
      INFO(fmt::format("seed {}, rank {}", seed, r));
      CHECK(test::least_peak(problem, Rank{r}).value == least_memory(problem, Rank{r}).value);
    }
  }
}

TEST_CASE("the bound of memory counts a gradient's slot once", "[synthesis]") {
  // While the second stage is busy with a micro-batch, the first does the weight part of the one before: with
  // room for one output at a time, next to two slots for its gradients.
  CostTable costs = test::RandomCosts(1).table(2, 2, false);
  costs.loss = Bytes{};
  StageCosts& first = costs.stages[0] = {};
  first.forward = first.backward_input = Seconds{1};
  first.backward_weight = Seconds{6};
  first.output = first.forward_peak = Bytes{100};
  first.output_kept = true;
  first.buffers = Bytes{1000};
  StageCosts& second = costs.stages[1] = {};
  second.forward = second.backward_input = Seconds{3};
  second.input = Bytes{100};
  Orders orders(2);
  const auto add = [&](int stage, Op op, int mb) {
    orders[static_cast<std::size_t>(stage)].push_back({op, StageId{stage}, MicroBatch{mb}});
  };
  for (int mb = 0; mb < 4; ++mb) {
    add(0, Op::forward, mb);
    if (mb > 0) add(0, Op::backward_weight, mb - 1);
    add(0, Op::backward_input, mb);
    add(1, Op::forward, mb);
    add(1, Op::backward, mb);
  }
  add(0, Op::backward_weight, 3);
  const Problem problem(Placement::straight(2), 4, true, costs, Bytes{1300});
  REQUIRE(well_formed(problem, orders));
  REQUIRE(fits(problem, orders));
  CHECK(lower_bound(problem).seconds <= Pricing(problem).run(orders).makespan);
}

}  // namespace stagecraft
