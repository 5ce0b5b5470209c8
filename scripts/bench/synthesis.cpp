// Synthesis against the library, over random cost sets at several memory caps: a table in Markdown.
//
//   synthesis [SETS] [WORK]       sets of costs (default 200), computations priced each (default 1,000,000)

#include "schedules/synthesis/synthesis.h"
#include "test/schedules/random_costs.h"

#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

using namespace stagecraft;

namespace {

struct Row {
  int sets = 0, library_fits = 0, fits = 0, optimal = 0, compared = 0, worse = 0, better = 0;
  double gain = 0, least_gain = 1e9, most_gain = -1e9, gap = 0, most_gap = 0, seconds = 0;
  std::map<std::string, int> from;
};

void add(Row& row, const Synthesis& found, double seconds) {
  ++row.sets;
  row.seconds += seconds;
  std::optional<Seconds> best;
  for (const LibraryResult& one : found.library) {
    if (one.fits && (!best || one.makespan < *best)) best = one.makespan;
  }
  row.library_fits += best.has_value();
  if (!found.fits) return;
  ++row.fits;
  ++row.from[found.from];
  row.optimal += found.optimal();
  row.gap += found.gap();
  row.most_gap = std::max(row.most_gap, found.gap());
  if (!best) return;
  const double gain = *best / found.makespan - 1;
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
  fmt::print("{} sets of costs, p = 2..6, m = p..3p, straight; work {}\n\n", sets, work);
  fmt::print(
      "| memory cap | library fits | synthesis fits | faster than the library's best | gain, mean | least | most | proved "
      "optimal | gap to the bound, mean | most | s each |\n|---|---|---|---|---|---|---|---|---|---|---|\n");
  for (const double cap : {0.0, 1.0, 0.75, 0.5}) {
    Row row;
    for (int set = 0; set < sets; ++set) {
      test::RandomCosts random(static_cast<std::uint64_t>(set));
      const int ranks = random.between(2, 6);
      const int micro_batches = random.between(ranks, 3 * ranks);
      const Placement placement = Placement::straight(ranks);
      const CostTable costs = random.table(ranks, ranks, true);
      SynthesisRequest request{.placement = placement, .micro_batches = micro_batches, .costs = &costs};
      if (cap > 0) {
        const auto peak = static_cast<double>(test::peak_of_1f1b(placement, micro_batches, costs).value);
        request.capacity = Bytes{static_cast<std::int64_t>(peak * cap)};
      }
      request.budget.work = work;
      const auto begin = std::chrono::steady_clock::now();
      const Synthesis found = synthesize(request);
      add(row, found, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
    }
    const double n = std::max(1, row.compared);
    fmt::print(
        "| {} | {}/{} | {} | {} of {} | {:.2f} % | {:.2f} % | {:.2f} % | {:.0f} % | {:.2f} % | {:.2f} % | {:.3f} |\n",
        cap > 0 ? fmt::format("{} of 1F1B's peak", cap) : "none", row.library_fits, row.sets, row.fits, row.better,
        row.compared, 100 * row.gain / n, 100 * row.least_gain, 100 * row.most_gain,
        100.0 * row.optimal / std::max(1, row.fits), 100 * row.gap / std::max(1, row.fits), 100 * row.most_gap,
        row.seconds / std::max(1, row.sets));
    for (const auto& [name, count] : row.from) fmt::print(stderr, "  {} {}\n", count, name);
  }
}
