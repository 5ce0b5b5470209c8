// Orders of Vs beside those of their authors' scheduler (test/data/orders/vs.json says whose numbers they are).

#include "base/json.h"
#include "schedules/checker/checker.h"
#include "schedules/generators/library.h"
#include "schedules/generators/registry.h"
#include "schedules/generators/v_blocks.h"
#include "schedules/generators/v_turns.h"
#include "schedules/lowering/lowering.h"
#include "schedules/program/step_program.h"
#include "schedules/simulator/simulator.h"
#include "test/support/catch.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

namespace stagecraft {
namespace {

constexpr double kRounding = 1e-5;  // of the numbers in the file
constexpr double kEqual = 5e-4;     // of searches that end beside each other
constexpr double kNamed = 0.01;     // of named orders, which are hardly searched for
constexpr std::int64_t kActivation = std::int64_t{100} << 20U;

struct VCase {
  std::string order;
  int micro_batches = 0;
  Placement placement;
  CostTable costs;
  Bytes capacity;
  double authors = 0;        // makespan, seconds
  double authors_cycle = 0;  // from step to step
  Json patterns;

  explicit VCase(const Json& row)
      : order(row.at("order")), micro_batches(row.at("micro_batches")), patterns(row.at("patterns_ms")) {
    const int ranks = row.at("ranks");
    placement = Placement::zigzag(ranks, 2);
    authors = row.at("authors_ms").get<double>() * 1e-3;
    authors_cycle = row.at("authors_cycle_ms").get<double>() * 1e-3;
    costs.network.levels = {{ranks, Link{Seconds{row.at("latency_ms").get<double>() * 1e-3}, 1e12}}};
    const auto seconds = [&](const char* part, std::size_t stage) {
      const Json& ms = row.at(part);
      return Seconds{(ms.is_array() ? ms.at(stage) : ms).get<double>() * 1e-3};
    };
    for (std::size_t s = 0; s < placement.ranks.size(); ++s) {
      StageCosts& stage = costs.stages.emplace_back();
      stage.forward = seconds("forward_ms", s);
      stage.backward_input = seconds("input_ms", s);
      stage.backward_weight = seconds("weight_ms", s);
      stage.input = Bytes{4};
      stage.output = Bytes{s + 1 < placement.ranks.size() ? 4 : 0};
      stage.kept_for_input = stage.forward_peak = Bytes{kActivation};
      stage.kept_for_weight = Bytes{kActivation / 2};
    }
    capacity = Bytes{static_cast<std::int64_t>(row.at("cap").get<double>() * kActivation) + (1 << 20)};
  }
  [[nodiscard]] std::string name() const {
    return fmt::format("{} of {} ranks, {} micro-batches", order, placement.world(), micro_batches);
  }
};

std::vector<VCase> v_cases() {
  std::ifstream file(STAGECRAFT_TEST_DATA "/orders/vs.json");
  std::vector<VCase> cases;
  const Json all = Json::parse(file);
  for (const Json& row : all.at("cases")) cases.emplace_back(row);
  return cases;
}

/// From one step to the next where ranks go on between them, else the makespan.
double step_of(const ScheduleProgram& program, const CostTable& costs, bool clip) {
  const LoweredProgram lowered = lower(program);
  REQUIRE(check(lowered, &costs).accepted());
  return (clip ? simulate(lowered, costs).makespan : Simulator(lowered).cycle(costs)).value;
}

/// What agreeing on the norm adds to a makespan.
double norm_seconds(const VCase& c) {
  const auto alone = [&](bool clip) {
    const Orders orders = v_turn_orders(workload_of({.placement = c.placement, .micro_batches = 1}),
                                        virtual_stages(c.placement, PlacementKind::v, "v_turns"));
    ScheduleProgram program =
        synchronous_program(make_header("custom", SegmentKind::train, c.placement, {1}), orders, clip);
    return simulate(lower(program), c.costs).makespan.value;
  };
  return alone(true) - alone(false);
}

/// Micro-batches of its stages that a rank keeps at most, from their forward to their weight gradient.
int most_kept(const ScheduleProgram& program) {
  int most = 0;
  for (const auto& list : program.ranks) {
    int kept = 0;
    for (const Action& action : list) {
      kept += action.op == Op::forward ? 1 : is_compute(action.op) && is_weight_part(action.op) ? -1 : 0;
      most = std::max(most, kept);
    }
  }
  return most;
}

}  // namespace

TEST_CASE("auto is not behind the authors' orders of Vs in the memory that theirs take", "[v_orders]") {
  for (const bool clip : {false, true}) {
    std::vector<double> ratios;
    for (const VCase& c : v_cases()) {
      INFO(c.name() << (clip ? ", the norm agreed on" : ", ranks going on"));
      const Synthesis found = synthesize_over_schedules({.placement = c.placement,
                                                         .micro_batches = c.micro_batches,
                                                         .clip = clip,
                                                         .costs = &c.costs,
                                                         .capacity = c.capacity,
                                                         .budget = {.work = 2'000'000}});
      CHECK(found.fits);
      for (const MemoryProof& rank : check(lower(found.program), &c.costs).memory)
        CHECK(rank.peak <= c.capacity);
      const double authors = clip ? c.authors + norm_seconds(c) : c.authors_cycle;
      CHECK(found.step.value <= authors * (1 + kEqual));
      ratios.push_back(found.step.value / authors);
    }
    REQUIRE(ratios.size() > 10);
    std::ranges::sort(ratios);
    CHECK(ratios[ratios.size() / 2] < 0.996);  // some meet their bound, as the authors' do
  }
}

TEST_CASE("Vs by name go by the costs, each in its memory", "[v_orders]") {
  struct Named {
    const char* name;
    int (*micro_batches)(int ranks);
  };
  const Named all[] = {{"zb_v", [](int ranks) { return ranks; }},
                       {"v_half", [](int ranks) { return (ranks + 2) / 2; }},
                       {"v_min", [](int ranks) { return (ranks + 4) / 3; }}};
  for (const VCase& c : v_cases()) {
    for (const Named& named : all) {
      for (const bool clip : {false, true}) {
        INFO(named.name << " for " << c.name() << (clip ? ", the norm agreed on" : ", ranks going on"));
        const ScheduleProgram program = find_schedule(named.name)
                                            .generate({.placement = c.placement,
                                                       .group_sizes = {c.micro_batches},
                                                       .clip = clip,
                                                       .costs = &c.costs});
        CHECK(most_kept(program) <= 2 * named.micro_batches(c.placement.world()));
        const double seconds = step_of(program, c.costs, clip) - (clip ? norm_seconds(c) : 0);
        CHECK(seconds <= c.patterns.at(named.name).get<double>() * 1e-3 * (1 + kNamed));
        if (c.order == "zbv" && named.name == std::string("zb_v")) {
          CHECK(seconds <= c.authors * (1 + kRounding));
          if (!clip) CHECK(seconds <= c.authors_cycle * (1 + kNamed));
        }
      }
    }
  }
}

TEST_CASE("Vs waste no time between steps that nothing has to be agreed on", "[v_orders]") {
  for (const int ranks : {2, 4, 8}) {
    for (const int turns : {2, 3}) {
      const int micro_batches = turns * ranks;
      INFO(ranks << " ranks, " << micro_batches << " micro-batches");
      VCase c = v_cases().front();
      c.placement = Placement::zigzag(ranks, 2);
      c.costs.stages.assign(c.placement.ranks.size(), c.costs.stages.front());
      c.costs.network.levels = {{ranks, Link{Seconds{0}, 1e12}}};
      for (StageCosts& stage : c.costs.stages)
        stage.forward = stage.backward_input = stage.backward_weight = Seconds{5e-3};
      const ScheduleProgram program = find_schedule("zb_v").generate(
          {.placement = c.placement, .group_sizes = {micro_batches}, .costs = &c.costs});
      CHECK(most_kept(program) <= 2 * ranks);
      CHECK(step_of(program, c.costs, false) <= 30e-3 * micro_batches * (1 + kRounding));
    }
  }
}

TEST_CASE("one forward, one backward on a V is an order in 1F1B's memory", "[v_orders]") {
  for (int ranks = 1; ranks <= 9; ++ranks) {
    const Placement placement = Placement::zigzag(ranks, 2);
    for (const int micro_batches : {1, 2, ranks, ranks + 1, 2 * ranks, 3 * ranks + 1}) {
      INFO(ranks << " ranks, " << micro_batches << " micro-batches");
      const Workload workload = workload_of({.placement = placement, .micro_batches = micro_batches});
      const Orders orders = v_turn_orders(workload, virtual_stages(placement, PlacementKind::v, "v_turns"));
      CHECK(replay(workload, orders).has_value());
      const ScheduleProgram program = synchronous_program(
          make_header("custom", SegmentKind::train, placement, {micro_batches}), orders, false);
      CHECK(check(lower(program)).accepted());
      CHECK(most_kept(program) <= 2 * ranks + 1);
    }
  }
}

TEST_CASE("blocks on a V are orders in the memory that is given, and squeezed", "[v_orders]") {
  int made = 0;
  for (int ranks = 2; ranks <= 9; ++ranks) {
    const Placement placement = Placement::zigzag(ranks, 2);
    for (const int micro_batches : {1, 2, ranks, 2 * ranks + 1}) {
      const Workload workload =
          workload_of({.placement = placement, .micro_batches = micro_batches, .goes_on = true});
      const Ticks unit = workload.times[0][0].forward;
      for (int capacity = 2; capacity < 2 * ranks; ++capacity) {
        INFO(ranks << " ranks, " << micro_batches << " micro-batches, " << capacity << " kept");
        Ticks least = kNever;
        for (const Orders& orders :
             v_block_orders(workload, virtual_stages(placement, PlacementKind::v, "v_blocks"), capacity)) {
          const auto value = replay(workload, orders);
          REQUIRE(value.has_value());
          least = std::min(least, value->step);
          const ScheduleProgram program = synchronous_program(
              make_header("custom", SegmentKind::train, placement, {micro_batches}), orders, false);
          CHECK(check(lower(program)).accepted());
          CHECK(most_kept(program) <= capacity);
          ++made;
        }
        // As much as 1F1B keeps hides all but what a micro-batch takes on its way.
        if (least != kNever && capacity == 2 * ranks - 1)
          CHECK(least <= unit * (6 * micro_batches + 4 * ranks));
      }
    }
  }
  CHECK(made > 300);
}

}  // namespace stagecraft
