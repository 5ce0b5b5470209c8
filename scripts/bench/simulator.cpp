// How many actions a second the simulator prices: what bounds a planner that searches with it.
//   cmake --preset planner -DSTAGECRAFT_BENCH=ON && ninja -C build-planner bench_simulator
//   build-planner/scripts/bench/bench_simulator --benchmark_repetitions=9
// `run` prices a program that was prepared once, `prepare` orders and resolves one, `lower` makes one from a
// schedule program. items_per_second counts lowered actions.

#include "schedules/simulator.h"

#include "schedules/lowering.h"
#include "schedules/schedule.h"

#include <benchmark/benchmark.h>

namespace {

using namespace stagecraft;

ScheduleProgram schedule_program(const benchmark::State& state) {
  ScheduleRequest request;
  request.placement = Placement::straight(static_cast<int>(state.range(0)));
  request.group_sizes = {static_cast<int>(state.range(1))};
  return find_schedule("1f1b").generate(request);
}

CostTable costs(int stages) {
  CostTable table;
  for (int s = 0; s < stages; ++s) {
    StageCosts stage;
    stage.forward = Seconds{1e-3 + 1e-5 * s};
    stage.backward_input = Seconds{1e-3};
    stage.backward_weight = Seconds{1e-3};
    stage.step = Seconds{5e-4};
    stage.input = stage.output = Bytes{1 << 20};
    table.stages.push_back(stage);
  }
  table.network = Network{{NetworkLevel{stages, Link{Seconds{1e-5}, 1e10}}}};
  return table;
}

void count(benchmark::State& state, std::size_t actions) {
  state.counters["actions"] = static_cast<double>(actions);
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(actions));
}

void run(benchmark::State& state) {
  const LoweredProgram program = lower(schedule_program(state));
  const CostTable table = costs(static_cast<int>(state.range(0)));
  Simulator simulator(program);
  for (auto _ : state) benchmark::DoNotOptimize(simulator.run(table).makespan);
  count(state, simulator.actions());
}

void prepare(benchmark::State& state) {
  const LoweredProgram program = lower(schedule_program(state));
  std::size_t actions = 0;
  for (auto _ : state) {
    const Simulator simulator(program);
    actions = simulator.actions();
  }
  count(state, actions);
}

void lower_program(benchmark::State& state) {
  const ScheduleProgram program = schedule_program(state);
  std::size_t actions = 0;
  for (auto _ : state) {
    const LoweredProgram lowered = lower(program);
    actions = 0;
    for (const auto& rank : lowered.ranks) actions += rank.size();
  }
  count(state, actions);
}

BENCHMARK(run)->ArgNames({"p", "m"})->Args({8, 64})->Args({64, 512});
BENCHMARK(prepare)->ArgNames({"p", "m"})->Args({8, 64});
BENCHMARK(lower_program)->Name("lower")->ArgNames({"p", "m"})->Args({8, 64});

}  // namespace

BENCHMARK_MAIN();
