// How much longer a simulated step takes with cuts from each planning rule than with the best cuts of all,
// which are found by enumeration. Prints the table of docs/design/planner.md.
//   bench_regret [SEEDS]        default 20

#include "partitioner/search/cut_search.h"
#include "partitioner/search/layout.h"
#include "partitioner/search/min_max.h"
#include "partitioner/search/planner.h"
#include "partitioner/search/program_pricer.h"
#include "schedules/generators/registry.h"
#include "test/partitioner/every_cuts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <random>

namespace {

using namespace stagecraft;
using namespace stagecraft::planning;

constexpr int kLayers = 16;
constexpr int kDevices = 4;

/// Layers as uneven as a convolutional network's: log-normal times, boundaries that vary as much.
Measurement random_model(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::lognormal_distribution<double> uneven(0, 0.5);
  Measurement model;
  for (int i = 0; i < kLayers; ++i) {
    LayerProfile& layer = model.layers.emplace_back();
    layer.name = fmt::format("layer{}", i);
    const double forward = 1e-3 * uneven(random);
    layer.forward.median = Seconds{forward};
    layer.backward_input.median = Seconds{forward * (0.8 + 0.1 * uneven(random))};
    layer.backward_weight.median = Seconds{forward * (0.6 + 0.2 * uneven(random))};
    layer.step.median = Seconds{forward * 0.1};
    layer.output = Bytes{static_cast<std::int64_t>(1e6 * uneven(random))};
  }
  return model;
}

struct Regret {
  double sum = 0, worst = 0;
  void add(double step, double best) {
    sum += step / best - 1;
    worst = std::max(worst, step / best - 1);
  }
  [[nodiscard]] std::string text(int cases) const {
    return fmt::format("{:.1f} % ({:.1f} %)", 100 * sum / cases, 100 * worst);
  }
};

/// Transfers of an average boundary take `link` times an average layer's compute.
void row(const Schedule& schedule, int micro_batches, double link, int seeds) {
  Regret ours, closed, even;
  std::int64_t simulated = 0;
  int proved = 0;
  std::size_t all = 0;
  for (int seed = 0; seed < seeds; ++seed) {
    const Measurement model = random_model(static_cast<std::uint64_t>(seed) + 1);
    const ChainCosts chain(model);
    double bytes = 0;
    for (int i = 1; i < kLayers; ++i) bytes += static_cast<double>(chain.boundary(i).value) / (kLayers - 1);
    const Network network{
        {{kDevices, Link{Seconds{1e-6}, bytes / (link * chain.compute(0, kLayers) / kLayers)}}}};
    const Layout layout = straight_layout(schedule.placement, schedule.virtual_stages, kDevices);
    const PlacedCosts placed(chain, network, layout.placement(), {});
    ScheduleRequest request;
    request.placement = layout.placement();
    request.group_sizes = {micro_batches};
    const ProgramFacts facts;
    ProgramPricer pricer(
        schedule, request, placed, {},
        [&](int first, int last) { return stage_costs(model, first, last, 0); }, facts);
    StageSettings settings(request.placement, kLayers, {Recompute::none});
    const RecomputeSettings nothing(request.placement.ranks.size(), Recompute::none);

    double best = std::numeric_limits<double>::infinity();
    double least_formula = best;
    std::vector<int> by_formula;
    all = 0;
    test::every_cuts(kLayers, layout.stages(), [&](const std::vector<int>& cuts) {
      ++all;
      best = std::min(best, pricer.seconds(cuts, nothing));
      // sum + (m - 1) max over stages and transfers; a device's several stages take turns.
      double sum = 0;
      std::vector<double> device(kDevices, 0.0);
      double most = 0;
      for (int s = 0; s < layout.stages(); ++s) {
        const int first = s == 0 ? 0 : cuts[static_cast<std::size_t>(s - 1)];
        const int last = s + 1 == layout.stages() ? kLayers : cuts[static_cast<std::size_t>(s)];
        sum += chain.compute(first, last);
        device[layout.placement().ranks[static_cast<std::size_t>(s)].front().index()] +=
            chain.compute(first, last);
        if (s == 0) continue;
        const double moved = network.levels[0].link.time(chain.boundary(first)).value;
        sum += 2 * moved;
        most = std::max(most, moved);
      }
      for (const double busy : device) most = std::max(most, busy);
      const double formula = sum + (micro_batches - 1) * most;
      if (formula >= least_formula) return;
      least_formula = formula;
      by_formula = cuts;
    });
    closed.add(pricer.seconds(by_formula, nothing), best);
    even.add(pricer.seconds(*min_max_cuts(model, network, layout.placement(), {}, settings), nothing), best);
    CutSearch search(placed, order_free_bounds(placed, micro_batches, pricer.split(), pricer.goes_on()),
                     kLayers, settings);
    const CutSearchResult found = search.run(pricer, std::numeric_limits<double>::infinity(), {});
    ours.add(found.seconds, best);
    simulated += found.simulated;
    proved += found.complete ? 1 : 0;
  }
  fmt::print("| {} | {} | {} | {} | {} | {} | {} of {} | {}/{} |\n", schedule.name, micro_batches,
             link < 0.1 ? "light" : "heavy", ours.text(seeds), closed.text(seeds), even.text(seeds),
             simulated / seeds, all, proved, seeds);
}

}  // namespace

int main(int argc, char** argv) {
  const int seeds = argc > 1 ? std::max(1, std::atoi(argv[1])) : 20;
  fmt::print("| schedule | m | links | search | sum + (m-1) max | min-max | simulated | proved |\n");
  fmt::print("|---|---|---|---|---|---|---|---|\n");
  for (const char* name : {"1f1b", "fill_drain", "interleaved_1f1b", "zb_h1"}) {
    for (const int micro_batches : {kDevices, 2 * kDevices, 8 * kDevices}) {
      for (const double link : {0.05, 1.0}) row(find_schedule(name), micro_batches, link, seeds);
    }
  }
  return 0;
}
