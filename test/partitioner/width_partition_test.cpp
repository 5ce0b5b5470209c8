// The partition into stages of several widths against all there are.

#include "partitioner/search/width_partition.h"

#include "schedules/costs/collectives.h"
#include "test/partitioner/every_cuts.h"
#include "test/partitioner/random_layout.h"
#include "test/support/catch.h"

#include <rapidcheck.h>

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>

namespace stagecraft {
namespace {

using namespace planning;

/// What crosses a boundary over a long time, pair by pair and link by link, as seconds per micro-batch.
double boundary_seconds(const Network& network, Bytes bytes, int from, int from_width, int to, int to_width) {
  std::map<std::tuple<std::size_t, std::int64_t, std::int64_t>, double> busy;
  const int rounds = from_width * to_width;
  for (int mb = 0; mb < rounds; ++mb) {
    const Rank a{from + mb % from_width};
    const Rank b{to + mb % to_width};
    const Network::Path path = network.path(a, b);
    const double seconds = path.link.time(bytes).value;
    if (path.shared) {
      busy[{path.level, path.from, -1}] += seconds;
      busy[{path.level, path.to, -2}] += seconds;
    } else {
      busy[{100, a.value, b.value}] += seconds;
    }
  }
  double most = 0;
  for (const auto& [carrier, seconds] : busy) most = std::max(most, seconds / rounds);
  return most;
}

double bottleneck(const Measurement& m, const Cluster& cluster, int micro_batches,
                  const std::vector<int>& cuts, const std::vector<int>& widths) {
  const Network network = cluster.network();
  double most = 0;
  int device = 0;
  for (std::size_t s = 0; s < widths.size(); ++s) {
    const int first = s == 0 ? 0 : cuts[s - 1];
    const int last = s + 1 == widths.size() ? static_cast<int>(m.layers.size()) : cuts[s];
    const StageCosts costs = stage_costs(m, first, last, 0);
    double slowest = cluster.speed.empty() ? 1 : std::numeric_limits<double>::infinity();
    std::vector<Rank> members;
    for (int d = device; d < device + widths[s]; ++d) {
      members.emplace_back(d);
      if (!cluster.speed.empty()) slowest = std::min(slowest, cluster.speed[static_cast<std::size_t>(d)]);
    }
    const double compute = (costs.forward + costs.backward_input + costs.backward_weight).value;
    most = std::max(most, compute / slowest / widths[s] +
                              all_reduce(network, members, costs.parameters).time().value / micro_batches);
    if (s > 0) {
      const int before = widths[s - 1];
      most =
          std::max(most, boundary_seconds(network, costs.input, device - before, before, device, widths[s]));
    }
    device += widths[s];
  }
  return most;
}

}  // namespace

TEST_CASE("widths and cuts have the smallest bottleneck of all", "[width_partition]") {
  REQUIRE(rc::check("against all", [] {
    const int layers = *rc::gen::inRange(1, 7);
    const Measurement m = test::random_measurement(layers);
    Cluster cluster = test::random_cluster();
    cluster.levels[0].count = *rc::gen::inRange(1, 4);
    cluster.speed.resize(cluster.speed.empty() ? 0 : static_cast<std::size_t>(cluster.devices()), 1.5);
    const int micro_batches = *rc::gen::inRange(1, 9);
    const auto stages = *rc::gen::arbitrary<bool>()
                            ? std::optional(*rc::gen::inRange(1, std::min(layers, cluster.devices()) + 1))
                            : std::nullopt;
    double least = std::numeric_limits<double>::infinity();
    LayoutLimits limits{.devices = cluster.devices(), .most_stages = layers, .stages = stages};
    std::vector<Layout> layouts = replicated_layouts(PlacementKind::straight, 1, limits).list;
    for (int p = 1; p <= std::min(layers, cluster.devices()); ++p) {
      if (!stages || *stages == p) layouts.push_back(straight_layout(PlacementKind::straight, 1, p));
    }
    for (const Layout& layout : layouts) {
      if (layout.block > 1) continue;
      test::every_cuts(layers, layout.stages(), [&](const std::vector<int>& cuts) {
        least = std::min(least, bottleneck(m, cluster, micro_batches, cuts, layout.widths));
      });
    }
    const ChainCosts chain(m);
    const Network network = cluster.network();
    const auto found = width_partition({.chain = chain,
                                        .network = network,
                                        .speed = cluster.speed,
                                        .devices = cluster.devices(),
                                        .cuttable = layers,
                                        .micro_batches = micro_batches,
                                        .stages = stages});
    RC_ASSERT(found);
    RC_ASSERT(found->exact);
    if (stages) RC_ASSERT(static_cast<int>(found->widths.size()) == *stages);
    RC_ASSERT(found->bottleneck <= least * (1 + 1e-9) + 1e-12);
    RC_ASSERT(std::abs(bottleneck(m, cluster, micro_batches, found->cuts, found->widths) -
                       found->bottleneck) <= 1e-9 * (1 + least));
    RC_CLASSIFY(std::accumulate(found->widths.begin(), found->widths.end(), 0) >
                    static_cast<int>(found->widths.size()),
                "replicated");
  }));
}

TEST_CASE("the paper's shapes: a stage of many replicas before one of few", "[width_partition]") {
  // VGG-16 in small: convolutions with much work and few weights, then a classifier with the reverse.
  Measurement m;
  for (int i = 0; i < 5; ++i) m.layers.push_back(test::plain_layer(i, 12, i < 4 ? 100'000 : 8));
  m.layers.push_back(test::plain_layer(5, 4, 0));
  m.layers[5].parameters = Bytes{4000};
  const ChainCosts chain(m);
  const Network network{{NetworkLevel{16, Link{Seconds{0}, 100}}}};
  const auto found = width_partition(
      {.chain = chain, .network = network, .speed = {}, .devices = 16, .cuttable = 6, .micro_batches = 1});
  CHECK(found->widths == std::vector<int>{15, 1});
  CHECK(found->cuts == std::vector<int>{5});
}

TEST_CASE("layouts: every width, and blocks where all are equal", "[width_partition]") {
  const auto names = [](const LayoutLimits& limits) {
    std::vector<std::string> all;
    for (const Layout& layout : replicated_layouts(PlacementKind::straight, 1, limits).list) {
      all.push_back(layout.name());
    }
    return all;
  };
  CHECK(names({.devices = 3, .most_stages = 8}) == std::vector<std::string>{"1-2", "1 x 2", "2-1", "1 x 3"});
  CHECK(names({.devices = 4, .most_stages = 8, .stages = 2}) ==
        std::vector<std::string>{"1-2", "1-3", "2-1", "2 x 2", "2 x 2, by pipeline", "3-1"});
  Layout layout{PlacementKind::straight, 1, {2, 2, 2, 2}, 2};
  CHECK(layout.placement().ranks ==
        std::vector<std::vector<Rank>>{
            {Rank{0}, Rank{2}}, {Rank{1}, Rank{3}}, {Rank{4}, Rank{6}}, {Rank{5}, Rank{7}}});
  layout.block = 4;
  CHECK(layout.placement().ranks[1] == std::vector<Rank>{Rank{1}, Rank{5}});
  layout.widths = {2, 3};
  layout.block = 1;
  CHECK(layout.placement().ranks ==
        std::vector<std::vector<Rank>>{{Rank{0}, Rank{1}}, {Rank{2}, Rank{3}, Rank{4}}});
  const Layouts many = replicated_layouts(PlacementKind::straight, 1, {.devices = 64, .most_stages = 64});
  CHECK_FALSE(many.all);
  CHECK(many.list.size() > 64);
}

}  // namespace stagecraft
