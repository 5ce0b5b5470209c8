// Plans of loops and Vs beside random cuts and even ones: of chains of 40 to 350 layers on 4 to 16 devices, from no
// cap to the least that some of those cuts fit. A row for every cap: the plan's step over the best sample that fits.
//   bench_loop_cuts [SEEDS] [SAMPLES] [FIRST_SEED] [SCHEDULE]        default 3 200 1, all schedules

#include "partitioner/search/planner.h"
#include "schedules/generators/registry.h"
#include "test/partitioner/loop_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <string>
#include <vector>

namespace {

using namespace stagecraft;
using namespace stagecraft::test;

struct Totals {
  int plans = 0, refused = 0, slower = 0;
  double worst = 0, seconds = 0;
};

void plan_under(const LoopCase& one, const Samples& samples, std::optional<Bytes> cap, const char* name,
                Totals& totals) {
  const Sample* best = samples.best(cap);
  Cluster cluster = one.cluster;
  cluster.memory = cap;
  const std::clock_t begin = std::clock();
  std::optional<PlanResult> result;
  try {
    result = make_plan(one.profile, cluster, one.request);
  } catch (const RefusedError&) {
  }
  const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  ++totals.plans;
  totals.seconds += seconds;
  const double ratio = result && best != nullptr ? result->best.step() / best->step : 0;
  totals.worst = std::max(totals.worst, ratio);
  const char* what = "";
  if (!result && best != nullptr) {
    ++totals.refused;
    what = " REFUSED";
  } else if (ratio > 1 + 1e-9) {
    ++totals.slower;
    what = " SLOWER";
  }
  fmt::print(
      "  {:6} cap {:>8.3f} GB: plan {:>10.3f} ms, samples {:>10.3f} ms ({}), ratio {:.4f}, gap {:.3f}, "
      "{:.2f} s{}\n",
      name, cap ? static_cast<double>(cap->value) * 1e-9 : 0.0,
      result ? result->best.step().value * 1e3 : 0.0, best != nullptr ? best->step.value * 1e3 : 0.0,
      best != nullptr ? best->kind : "none fits", ratio,
      result && result->proof ? result->proof->gap(result->best.step()) : 0.0, seconds, what);
  std::fflush(stdout);
}

int argument(int count, char** values, int index, int fallback) {
  return index < count ? std::atoi(values[index]) : fallback;
}

}  // namespace

int main(int count, char** values) {
  const int seeds = argument(count, values, 1, 3);
  const int samples = argument(count, values, 2, 200);
  const int first = argument(count, values, 3, 1);
  const std::string only = count > 4 ? values[4] : "";
  Totals all;
  for (const char* schedule :
       {"interleaved_1f1b", "looped_bfs", "interleaved_zb", "zb_v", "v_half", "v_min", "auto"}) {
    if (!only.empty() && only != schedule) continue;
    Totals totals;
    for (int seed = first; seed < first + seeds; ++seed) {
      const LoopCase one = large_case(schedule, static_cast<std::uint64_t>(seed));
      const Samples priced(one, std::string(schedule) == "auto" ? samples / 10 : samples,
                           static_cast<std::uint64_t>(seed));
      fmt::print("{} seed {}: {}\n", schedule, seed, one.name);
      plan_under(one, priced, std::nullopt, "none", totals);
      for (const auto& [name, share] :
           {std::pair("half", 0.5), std::pair("tenth", 0.1), std::pair("least", 0.0)}) {
        plan_under(one, priced, priced.memory_at(share), name, totals);
      }
    }
    fmt::print("{}: {} plans, {} refused that fit, {} slower than a sample, worst ratio {:.4f}, {:.1f} s\n\n",
               schedule, totals.plans, totals.refused, totals.slower, totals.worst, totals.seconds);
    all.plans += totals.plans;
    all.refused += totals.refused;
    all.slower += totals.slower;
    all.worst = std::max(all.worst, totals.worst);
    all.seconds += totals.seconds;
  }
  fmt::print("all: {} plans, {} refused that fit, {} slower than a sample, worst ratio {:.4f}, {:.1f} s\n",
             all.plans, all.refused, all.slower, all.worst, all.seconds);
  return all.refused + all.slower > 0 ? 1 : 0;
}
