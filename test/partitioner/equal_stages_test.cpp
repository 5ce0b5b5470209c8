// Bounds of equally wide stages against every cut's simulated step, and one pipeline's program against the
// whole's.

#include "partitioner/search/equal_stages.h"

#include "partitioner/search/program_pricer.h"
#include "partitioner/search/replica_part.h"
#include "partitioner/search/step_bound.h"
#include "schedules/generators/registry.h"
#include "schedules/lowering/lowering.h"
#include "schedules/simulator/simulator.h"
#include "test/partitioner/every_cuts.h"
#include "test/partitioner/near.h"
#include "test/partitioner/random_layout.h"
#include "test/support/catch.h"

#include <rapidcheck.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

namespace stagecraft {
namespace {

using namespace planning;
using test::near;

/// Equally wide, in any block.
struct EqualStagesCase {
  Schedule schedule;
  Cluster cluster;
  Measurement measurement;
  Network network;
  Layout layout;
  ScheduleRequest request;

  /// Straight: of a schedule whose order does not follow costs.
  static EqualStagesCase draw(bool straight, int most_layers) {
    Schedule drawn = *rc::gen::suchThat(rc::gen::elementOf(schedules()), [&](const Schedule& s) {
      return s.synchronous && !s.searched &&
             (!straight || (s.placement == PlacementKind::straight && !s.orders_by_time));
    });
    const int least_layers = 2 * drawn.virtual_stages;
    EqualStagesCase c{std::move(drawn),
                      test::random_cluster(),
                      test::random_measurement(*rc::gen::inRange(least_layers, most_layers + 1)),
                      {},
                      {},
                      {}};
    c.network = c.cluster.network();
    const int stages_per_rank = c.schedule.virtual_stages;
    const int layers = static_cast<int>(c.measurement.layers.size());
    const int positions = *rc::gen::inRange(stages_per_rank > 1 ? 2 : 1,
                                            std::min({layers / stages_per_rank, 4, c.cluster.devices()}) + 1);
    const int replicas = *rc::gen::inRange(1, c.cluster.devices() / positions + 1);
    int block = *rc::gen::inRange(1, positions + 1);
    while (positions % block != 0) --block;
    c.layout = {c.schedule.placement, stages_per_rank,
                std::vector<int>(static_cast<std::size_t>(positions), replicas), block};
    c.request.placement = c.layout.placement();
    c.request.group_sizes = {*rc::gen::inRange(1, 9)};
    c.request.clip = *rc::gen::arbitrary<bool>();
    c.request.recompute.assign(static_cast<std::size_t>(c.layout.stages()),
                               *rc::gen::element(Recompute::none, Recompute::all, Recompute::all_but_last));
    return c;
  }
  [[nodiscard]] int micro_batches() const { return request.group_sizes.front(); }
  [[nodiscard]] int layers() const { return static_cast<int>(measurement.layers.size()); }
  [[nodiscard]] CostTable costs(const std::vector<int>& cuts) const {
    CostTable table;
    table.network = network;
    table.speed = cluster.speed;
    for (int s = 0; s < layout.stages(); ++s) {
      const int first = s == 0 ? 0 : cuts[static_cast<std::size_t>(s - 1)];
      const int last = s + 1 == layout.stages() ? layers() : cuts[static_cast<std::size_t>(s)];
      table.stages.push_back(stage_costs(measurement, first, last, 2));
    }
    return table;
  }
};

std::vector<int> some_cuts(const EqualStagesCase& c) {
  // Every further cut somewhere between the one before and the last place that leaves enough.
  std::vector<int> cuts;
  for (int stage = 1; stage < c.layout.stages(); ++stage) {
    const int first = cuts.empty() ? 1 : cuts.back() + 1;
    cuts.push_back(*rc::gen::inRange(first, c.layers() - c.layout.stages() + stage + 1));
  }
  return cuts;
}

}  // namespace

TEST_CASE("a pipeline's program is its ranks' part of the whole", "[equal_stages]") {
  REQUIRE(rc::check("lists", [] {
    EqualStagesCase c = EqualStagesCase::draw(false, 8);
    const int replicas = c.layout.widths.front();
    const CostTable costs = c.costs(some_cuts(c));
    c.request.costs = &costs;
    const ScheduleProgram whole = c.schedule.generate(c.request);
    const ReplicaPart made = replica_part(c.schedule, c.request, c.network, c.cluster.speed);
    RC_ASSERT(made.part.ranks.size() == made.program.ranks.size());
    for (std::size_t r = 0; r < made.part.ranks.size(); ++r) {
      const Rank rank = made.part.ranks[r];
      const auto& ranks = c.request.placement.ranks[c.request.placement.stages_of(rank).front().index()];
      const auto k = static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
      std::vector<Action> expected = whole.ranks[rank.index()];
      std::vector<Action> found = made.program.ranks[r];
      for (Action& action : found) {
        if (action.micro_batch.valid())
          action.micro_batch = MicroBatch{action.micro_batch.value * replicas + k};
      }
      // Who reports losses depends on which rank prints.
      for (auto* list : {&expected, &found}) {
        std::erase_if(*list, [](const Action& action) { return action.op == Op::report_loss; });
      }
      RC_ASSERT(found == expected);
    }
    RC_CLASSIFY(replicas > 1, "replicated");
    RC_CLASSIFY(replicas > 1 && c.schedule.orders_by_time, "replicated, ordered by time");
    RC_CLASSIFY(c.layout.stages_per_rank > 1, "several stages per rank");
  }));
}

TEST_CASE("a pipeline takes no longer than the whole, and as long where all are alike", "[equal_stages]") {
  REQUIRE(rc::check("steps", [] {
    EqualStagesCase c = EqualStagesCase::draw(false, 8);
    const int replicas = c.layout.widths.front();
    const bool alike = *rc::gen::arbitrary<bool>();
    if (alike) {
      c.cluster.speed.clear();
      c.network = {{{c.cluster.devices(), c.network.levels.front().link}}};
      c.request.group_sizes = {replicas * *rc::gen::inRange(1, 4)};
    }
    const CostTable costs = c.costs(some_cuts(c));
    c.request.costs = &costs;
    const LoweredProgram program = lower(c.schedule.generate(c.request));
    const ReplicaPart made = replica_part(c.schedule, c.request, c.network, c.cluster.speed);
    const LoweredProgram part = lower(made.program);
    const double whole = simulate(program, costs).makespan.value;
    Simulator simulator(part, made.part);
    const double one = simulator.run(costs).makespan.value;
    RC_ASSERT(one <= whole * (1 + 1e-9));
    if (alike) {
      // Losses of the other pipelines may come last where a backward takes no time.
      const double latest = whole - costs.network.levels.front().link.time(costs.loss).value;
      RC_ASSERT(one >= latest * (1 - 1e-9));
      RC_CLASSIFY(near(one, whole), "alike and the same");
    }
    // Its critical path bounds the whole's step of other cuts as well.
    const ChainCosts chain(c.measurement);
    const PlacedCosts placed(chain, c.network, c.request.placement, c.cluster.speed);
    CriticalPath path = simulator.critical_path(costs);
    as_whole(path, made.part);
    const StepBound bound = bound_of(path, placed, costs);
    const std::vector<int> others = some_cuts(c);
    RC_ASSERT(placed.value(bound, others, c.request.recompute) <=
              simulate(program, c.costs(others)).makespan.value * (1 + 1e-9));
  }));
}

TEST_CASE("no bound of equally wide stages is above a simulated step", "[equal_stages]") {
  REQUIRE(rc::check("bounds", [] {
    EqualStagesCase c = EqualStagesCase::draw(true, 6);
    const ScheduleProgram whole = c.schedule.generate(c.request);
    const bool split = std::any_of(whole.ranks[0].begin(), whole.ranks[0].end(),
                                   [](const Action& action) { return action.op == Op::backward_input; });
    const bool goes_on = *rc::gen::arbitrary<bool>();
    double least = std::numeric_limits<double>::infinity();
    test::every_cuts(c.layers(), c.layout.stages(), [&](const std::vector<int>& cuts) {
      const LoweredProgram program = lower(whole);
      Simulator simulator(program);
      const CostTable costs = c.costs(cuts);
      least = std::min(least, (goes_on ? simulator.cycle(costs) : simulator.run(costs).makespan).value);
    });
    const ChainCosts chain(c.measurement);
    double fastest = 1;
    if (!c.cluster.speed.empty()) fastest = *std::max_element(c.cluster.speed.begin(), c.cluster.speed.end());
    const EqualStages stages({.chain = chain,
                              .network = c.network,
                              .speed = fastest,
                              .devices = c.cluster.devices(),
                              .cuttable = c.layers(),
                              .micro_batches = c.micro_batches(),
                              .split = split,
                              .repeated = c.request.recompute.front(),
                              .goes_on = goes_on});
    const PlacedCosts placed(chain, c.network, c.request.placement, c.cluster.speed);
    const std::vector<StageOrder> orders = stage_orders(whole);
    double before = 0;
    for (const auto* order : {static_cast<const std::vector<StageOrder>*>(nullptr), &orders}) {
      for (const auto* where : {static_cast<const PlacedCosts*>(nullptr), &placed}) {
        const EqualStages::Least bound = stages.least({.stages = c.layout.stages(),
                                                       .replicas = c.layout.widths.front(),
                                                       .orders = order,
                                                       .placed = where});
        RC_ASSERT(bound.cuts);
        RC_ASSERT(bound.bound <= least * (1 + 1e-9));
        before = std::max(before, bound.bound);
      }
    }
    RC_CLASSIFY(before > 0.9 * least, "close");
  }));
}

}  // namespace stagecraft
