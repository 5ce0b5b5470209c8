// What generating, lowering, checking and simulating cost, as pipelines grow.
//   cmake --preset planner -DSTAGECRAFT_BENCHMARKS=ON && ninja -C build-planner bench_simulator
//   build-planner/test/bench/bench_simulator --benchmark_filter='run/p:8/m:64/v:1$' --benchmark_repetitions=9
//   build-planner/test/bench/bench_simulator --benchmark_filter=everything
// `prepare` orders a program's actions and resolves its transfers, `run` prices a prepared program: the
// planner's inner loop. items_per_second counts lowered actions. 1F1B, v stages per rank, dealt round.
// scripts/bench/growth.py plots it.

#include "schedules/checker/checker.h"
#include "schedules/generators/registry.h"
#include "schedules/generators/schedule.h"
#include "schedules/lowering/lowering.h"
#include "schedules/simulator/simulator.h"

#include <benchmark/benchmark.h>
#include <ctime>
#include <fstream>
#include <string>

namespace {

using namespace stagecraft;

struct Size {
  int ranks, micro_batches, stages_per_rank;
  explicit Size(const benchmark::State& state)
      : ranks(static_cast<int>(state.range(0))),
        micro_batches(static_cast<int>(state.range(1))),
        stages_per_rank(static_cast<int>(state.range(2))) {}
  [[nodiscard]] int stages() const { return ranks * stages_per_rank; }
};

ScheduleProgram generate(const Size& size) {
  ScheduleRequest request;
  for (int s = 0; s < size.stages(); ++s) request.placement.ranks.push_back({Rank{s % size.ranks}});
  request.group_sizes = {size.micro_batches};
  return find_schedule("1f1b").generate(request);
}

CostTable costs(const Size& size) {
  CostTable table;
  for (int s = 0; s < size.stages(); ++s) {
    StageCosts stage;
    stage.forward = Seconds{1e-3 + 1e-5 * (s % 7)};
    stage.backward_input = Seconds{1e-3};
    stage.backward_weight = Seconds{1e-3};
    stage.step = Seconds{5e-4};
    stage.input = stage.output = Bytes{1 << 20};
    table.stages.push_back(stage);
  }
  table.network = Network{{NetworkLevel{size.ranks, Link{Seconds{1e-5}, 1e10}}}};
  return table;
}

std::size_t actions_of(const LoweredProgram& program) {
  std::size_t actions = 0;
  for (const auto& rank : program.ranks) actions += rank.size();
  return actions;
}

void count(benchmark::State& state, std::size_t actions) {
  state.counters["actions"] = static_cast<double>(actions);
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(actions));
}

void generate(benchmark::State& state) {
  const Size size(state);
  for (auto _ : state) benchmark::DoNotOptimize(generate(size));
  count(state, actions_of(lower(generate(size))));
}

void lower(benchmark::State& state) {
  const ScheduleProgram program = generate(Size(state));
  for (auto _ : state) benchmark::DoNotOptimize(lower(program));
  count(state, actions_of(lower(program)));
}

void check(benchmark::State& state) {
  const LoweredProgram program = lower(generate(Size(state)));
  const CostTable table = costs(Size(state));
  for (auto _ : state) benchmark::DoNotOptimize(check(program, &table));
  count(state, actions_of(program));
}

void prepare(benchmark::State& state) {
  const LoweredProgram program = lower(generate(Size(state)));
  for (auto _ : state) benchmark::DoNotOptimize(Simulator(program));
  count(state, actions_of(program));
}

void run_with(benchmark::State& state, const CostTable& table) {
  const LoweredProgram program = lower(generate(Size(state)));
  Simulator simulator(program);
  for (auto _ : state) benchmark::DoNotOptimize(simulator.run(table).makespan);
  count(state, actions_of(program));
}

void run(benchmark::State& state) { run_with(state, costs(Size(state))); }

void run_shared(benchmark::State& state) {
  CostTable table = costs(Size(state));
  table.network.levels = {{4, Link{Seconds{1e-5}, 1e10}},
                          {Size(state).ranks, Link{Seconds{1e-5}, 1e9}, SharedBy::child}};
  run_with(state, table);
}

void run_jittered(benchmark::State& state) {
  const LoweredProgram program = lower(generate(Size(state)));
  const CostTable table = costs(Size(state));
  Simulator simulator(program);
  constexpr int kSamples = 100;
  for (auto _ : state) benchmark::DoNotOptimize(simulator.sample(table, {kSamples, 0, 0.1, 0.1}));
  count(state, actions_of(program) * kSamples);
}

void lost_time(benchmark::State& state) {
  const LoweredProgram program = lower(generate(Size(state)));
  const CostTable table = costs(Size(state));
  Simulator simulator(program);
  for (auto _ : state) benchmark::DoNotOptimize(simulator.lost_time(table));
  count(state, actions_of(program));
}

double peak_mib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmHWM:", 0) == 0) return std::stod(line.substr(6)) / 1024;
  }
  return 0;
}

/// From request to makespan, once; the parts in seconds of CPU, the peak over all up to each of them in MiB.
void everything(benchmark::State& state) {
  const Size size(state);
  const CostTable table = costs(size);
  std::size_t actions = 0;
  for (auto _ : state) {
    std::clock_t begin = std::clock();
    const auto part = [&](const std::string& name) {
      state.counters[name + "_s"] = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
      state.counters[name + "_peak_MiB"] = peak_mib();
      begin = std::clock();
    };
    const LoweredProgram program = [&] {
      const ScheduleProgram schedule = generate(size);
      part("1_generate");
      return lower(schedule);
    }();
    part("2_lower");
    Simulator simulator(program);
    part("3_prepare");
    benchmark::DoNotOptimize(simulator.run(table).makespan);
    part("4_run");
    benchmark::DoNotOptimize(check(program, &table));
    part("5_check");
    actions = actions_of(program);
  }
  count(state, actions);
}

/// One of p, m and v grows, the other two stay.
void growth(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"p", "m", "v"});
  for (const int p : {2, 4, 8, 16, 32, 64, 128, 256}) benchmark->Args({p, 64, 1});
  for (const int m : {8, 16, 32, 128, 256, 512, 1024}) benchmark->Args({8, m, 1});
  for (const int v : {2, 4, 8, 16}) benchmark->Args({8, 64, v});
}

void planner_size(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"p", "m", "v"})->Args({8, 64, 1})->Args({64, 512, 1});
}

BENCHMARK(generate)->Apply(growth);
BENCHMARK(lower)->Apply(growth);
BENCHMARK(check)->Apply(growth);
BENCHMARK(prepare)->Apply(growth);
BENCHMARK(run)->Apply(growth);
BENCHMARK(run_shared)->Apply(planner_size);
BENCHMARK(run_jittered)->Apply(planner_size)->Unit(benchmark::kMillisecond);
BENCHMARK(lost_time)->Apply(planner_size);
BENCHMARK(everything)
    ->ArgNames({"p", "m", "v"})
    ->Args({4096, 512, 1})
    ->Iterations(1)
    ->Unit(benchmark::kSecond);

}  // namespace

BENCHMARK_MAIN();
