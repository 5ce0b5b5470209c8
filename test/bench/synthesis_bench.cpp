// Synthesis against the library, over random cost sets at several memory caps: a table in Markdown.
//
//   cmake --preset planner -DSTAGECRAFT_BENCHMARKS=ON && ninja -C build-planner bench_synthesis
//   build-planner/test/bench/bench_synthesis [SETS] [WORK]
//
// SETS sets of costs (200), WORK computations priced a placement (1,000,000). A set is a model of 2 p uneven
// parts: a straight pipeline has two of them a stage, a loop or V one. Caps are shares of what 1F1B's fullest
// rank needs on the straight one. The bound over placements is the least of theirs; where no order of a
// placement can fit, it does not count.

#include "schedules/generators/library.h"
#include "test/schedules/random_costs.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

using namespace stagecraft;

namespace {

struct Row {
  int sets = 0, library_fits = 0, fits = 0, impossible = 0, optimal = 0, compared = 0, worse = 0, better = 0;
  double gain = 0, least_gain = 1e9, most_gain = 0, gap = 0, most_gap = 0, seconds = 0;
  std::map<std::string, int> from;
};

/// Two neighbouring stages as one.
CostTable merged(const CostTable& halves) {
  CostTable costs = halves;
  costs.stages.clear();
  for (std::size_t s = 0; s + 1 < halves.stages.size(); s += 2) {
    const StageCosts& a = halves.stages[s];
    const StageCosts& b = halves.stages[s + 1];
    StageCosts c = b;
    c.forward += a.forward;
    c.backward_input += a.backward_input;
    c.backward_weight += a.backward_weight;
    c.step += a.step;
    c.parameters += a.parameters;
    c.optimizer_state += a.optimizer_state;
    c.input = a.input;
    c.kept_for_input += a.kept_for_input + a.output;
    c.kept_for_weight += a.kept_for_weight + a.output;
    c.forward_peak += a.kept_for_input + a.output;
    c.backward_peak = std::max(a.backward_peak, b.backward_peak) + a.output;
    costs.stages.push_back(c);
  }
  return costs;
}

/// The best of all placements of one model: p straight stages, or 2 p half ones in a loop or a V.
void add(Row& row, const std::vector<Synthesis>& found, double seconds) {
  ++row.sets;
  row.seconds += seconds;
  std::optional<Seconds> library;
  const Synthesis* best = nullptr;
  double bound = 1e300;
  bool impossible = true;
  for (const Synthesis& one : found) {
    for (const LibraryResult& result : one.library) {
      if (result.fits && (!library || result.step < *library)) library = result.step;
    }
    if (one.impossible) continue;
    impossible = false;
    bound = std::min(bound, one.bound.seconds);
    if (one.fits && (best == nullptr || one.step < best->step)) best = &one;
  }
  row.library_fits += library.has_value();
  row.impossible += impossible;
  if (best == nullptr) return;
  ++row.fits;
  ++row.from[best->from];
  const double gap = best->step.value / bound - 1;
  row.optimal += gap <= 1e-9;
  row.gap += gap;
  row.most_gap = std::max(row.most_gap, gap);
  if (!library) return;
  const double gain = *library / best->step - 1;
  ++row.compared;
  row.worse += gain < 0;
  row.better += gain > 1e-9;
  row.gain += gain;
  row.least_gain = std::min(row.least_gain, gain);
  row.most_gain = std::max(row.most_gain, gain);
}

}  // namespace

int main(int argc, char** argv) {
  const int sets = argc > 1 ? std::atoi(argv[1]) : 200;
  const std::int64_t work = argc > 2 ? std::atoll(argv[2]) : 1'000'000;
  fmt::print("{} sets of costs, p = 2..6, m = p..3p; {} computations priced a placement\n\n", sets, work);
  fmt::print(
      "| placements | memory cap | library fits | synthesis fits | proved impossible | not found | faster "
      "than the library's best | never "
      "slower | gain: mean "
      "| least | most | proved optimal | gap to the bound: mean | most | s each |\n"
      "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|\n");
  for (const bool all : {false, true}) {
    for (const double cap : {0.0, 1.0, 0.75, 0.5}) {
      Row row;
      for (int set = 0; set < sets; ++set) {
        test::RandomCosts random(static_cast<std::uint64_t>(set));
        const int ranks = random.between(2, 6);
        const int micro_batches = random.between(ranks, 3 * ranks);
        const CostTable halves = random.table(2 * ranks, ranks, true);
        const CostTable whole = merged(halves);
        std::optional<Bytes> capacity;
        if (cap > 0) {
          const Bytes peak = test::peak_of_1f1b(Placement::straight(ranks), micro_batches, whole);
          capacity = Bytes{static_cast<std::int64_t>(static_cast<double>(peak.value) * cap)};
        }
        const auto begin = std::chrono::steady_clock::now();
        std::vector<Synthesis> found;
        const auto on = [&](const Placement& placement, const CostTable& costs) {
          SynthesisRequest request{.placement = placement, .micro_batches = micro_batches, .costs = &costs};
          request.capacity = capacity;
          request.budget.work = work;
          found.push_back(synthesize_over_schedules(request));
        };
        on(Placement::straight(ranks), whole);
        if (all) {
          on(Placement::looped(ranks, 2), halves);
          on(Placement::zigzag(ranks, 2), halves);
        }
        add(row, found, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
      }
      const double n = std::max(1, row.compared);
      const double fits = std::max(1, row.fits);
      const auto percent = [&](double share) {
        return row.compared == 0 ? std::string("-") : fmt::format("{:.2f} %", 100 * share);
      };
      fmt::print(
          "| {} | {} | {} of {} | {} | {} | {} | {} of {} | {} | {} | {} | {} | {:.0f} % | {:.2f} % | {:.2f} "
          "% | "
          "{:.2f} |\n",
          all ? "straight, loop, V" : "straight", cap > 0 ? fmt::format("{}", cap) : "none", row.library_fits,
          row.sets, row.fits, row.impossible, row.sets - row.fits - row.impossible, row.better, row.compared,
          row.worse == 0 ? "yes" : "NO", percent(row.gain / n), percent(row.least_gain),
          percent(row.most_gain), 100 * row.optimal / fits, 100 * row.gap / fits, 100 * row.most_gap,
          row.seconds / std::max(1, row.sets));
      std::fflush(stdout);
    }
  }
}
