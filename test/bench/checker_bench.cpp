// What it takes to generate, lower and prove programs, up to the largest that are asked for.
//   cmake --preset planner -DSTAGECRAFT_BENCHMARKS=ON && ninja -C build-planner bench_checker
//   build-planner/test/bench/bench_checker
// items_per_second counts lowered actions (of `generate`, the schedule's own). `peak_MB` is the process's
// largest resident size so far: run one benchmark at a time (--benchmark_filter) to have it of that one.

#include "stagecraft/schedules/checker/checker.h"
#include "stagecraft/schedules/generators/registry.h"
#include "stagecraft/schedules/generators/schedule.h"
#include "stagecraft/schedules/lowering/lowering.h"

#include <benchmark/benchmark.h>
#include <sys/resource.h>

namespace {

using namespace stagecraft;

ScheduleProgram program_of(const benchmark::State& state) {
  return find_schedule("1f1b").generate({.placement = Placement::straight(static_cast<int>(state.range(0))),
                                         .group_sizes = {static_cast<int>(state.range(1))}});
}

template <class Program>
void count(benchmark::State& state, const Program& program) {
  std::size_t actions = 0;
  for (const auto& list : program.ranks) actions += list.size();
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  state.counters["actions"] = static_cast<double>(actions);
  state.counters["peak_MB"] = static_cast<double>(usage.ru_maxrss) / 1024;
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(actions));
}

void generate(benchmark::State& state) {
  ScheduleProgram program;
  for (auto _ : state) program = program_of(state);
  count(state, program);
}

void lower_program(benchmark::State& state) {
  const ScheduleProgram program = program_of(state);
  LoweredProgram lowered;
  for (auto _ : state) lowered = lower(program);
  count(state, lowered);
}

void check_program(benchmark::State& state, const TransportRules& rules) {
  const LoweredProgram lowered = lower(program_of(state));
  for (auto _ : state) benchmark::DoNotOptimize(check(lowered, nullptr, std::nullopt, rules).accepted());
  count(state, lowered);
}

void least_channel_slots_of_program(benchmark::State& state) {
  const ScheduleProgram program = program_of(state);
  for (auto _ : state) benchmark::DoNotOptimize(least_channel_slots(program)->total);
  count(state, program);
}

void sizes(benchmark::internal::Benchmark* bench) {
  bench->ArgNames({"p", "m"})->Unit(benchmark::kMillisecond);
  for (const auto& [p, m] :
       {std::pair{8, 64}, std::pair{64, 512}, std::pair{1024, 512}, std::pair{4096, 512}}) {
    bench->Args({p, m});
  }
}

BENCHMARK(generate)->Apply(sizes);
BENCHMARK(lower_program)->Name("lower")->Apply(sizes);
BENCHMARK_CAPTURE(check_program, rendezvous, TransportRules{})->Name("check")->Apply(sizes);
BENCHMARK_CAPTURE(check_program, nccl, TransportRules::nccl())->Name("check_nccl")->Apply(sizes);
BENCHMARK(least_channel_slots_of_program)->Name("least_channel_slots")->Apply(sizes);

}  // namespace

BENCHMARK_MAIN();
