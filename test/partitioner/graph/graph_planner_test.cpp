// Plans of graphs against the plans of all their rows, which make every nested sequence of downsets.

#include "stagecraft/partitioner/graph/graph_planner.h"

#include "stagecraft/partitioner/compare_costs.h"
#include "stagecraft/partitioner/graph/chain.h"
#include "stagecraft/partitioner/graph/graph_search.h"
#include "stagecraft/partitioner/graph/graph_text.h"
#include "test/partitioner/graph/random_graph.h"
#include "test/support/catch.h"

#include <rapidcheck.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <set>

namespace stagecraft {
namespace {

/// Calls `visit` for every order along the edges.
void every_row(const LayerGraph& graph, const std::function<void(const std::vector<int>&)>& visit) {
  const std::vector<std::vector<int>> reads = graph.predecessors();
  std::vector<int> row;
  std::vector<bool> taken(graph.nodes.size());
  const std::function<void()> extend = [&] {
    if (row.size() == graph.nodes.size()) return visit(row);
    for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
      const bool ready = std::all_of(reads[n].begin(), reads[n].end(),
                                     [&](int read) { return taken[static_cast<std::size_t>(read)]; });
      if (taken[n] || !ready) continue;
      taken[n] = true;
      row.push_back(static_cast<int>(n));
      extend();
      row.pop_back();
      taken[n] = false;
    }
  };
  extend();
}

Cluster random_cluster() {
  Cluster cluster;
  const double bandwidth = *rc::gen::element(2.0, 8.0, 256.0);
  cluster.levels = {{2, Link{Seconds{test::random_below(2) / 4.0}, bandwidth}}};
  if (test::random_below(2) == 0) cluster.levels.push_back({2, Link{Seconds{0.25}, bandwidth / 4}});
  if (test::random_below(4) == 0) cluster.levels.back().shared_by = SharedBy::child;
  if (test::random_below(4) == 0) {
    for (int d = 0; d < cluster.devices(); ++d) cluster.speed.push_back(*rc::gen::element(0.5, 1.0, 2.0));
  }
  return cluster;
}

PlanRequest graph_request(int micro_batches, std::optional<int> stages) {
  PlanRequest request;
  request.micro_batches = micro_batches;
  request.stages = stages;
  return request;
}

struct GraphCase {
  LayerGraph graph = test::random_graph(6);
  Planned planned = without_dropped(graph);
  Cluster cluster = random_cluster();
  PlanRequest request = graph_request(1 + test::random_below(6), std::nullopt);

  GraphCase() { request.replicate = test::random_below(2) == 0; }

  /// Of all rows the least of a figure of the plan.
  [[nodiscard]] double least(const std::function<double(const Plan&)>& value) const {
    double least = kInfinite;
    std::set<std::vector<std::int64_t>> seen;
    every_row(planned.graph, [&](const std::vector<int>& row) {
      std::vector<std::vector<int>> layers;
      for (const int node : row) layers.push_back({node});
      const Profile profile = chain_profile(planned, layers, 1);
      least = std::min(least, value(make_plan(profile, cluster, request).best.plan));
    });
    return least;
  }
};

double step_of(const Plan& plan) { return plan.predicted->step.value; }

LayerGraph inception() { return read_graph(STAGECRAFT_TEST_DATA "/pipedream/inception_v3.graph.txt"); }

Cluster four_devices() { return flat_cluster("4", 4, {Seconds{1e-5}, 12e9}); }

}  // namespace

TEST_CASE("no row of a graph has a shorter step than its bound, and seldom than its plan",
          "[graph_planner]") {
  int all = 0;
  int missed = 0;
  REQUIRE(rc::check("random graphs, clusters and schedules", [&] {
    GraphCase c;
    if (c.planned.graph.nodes.empty()) return;
    c.request.schedule.name = *rc::gen::element<std::string>("1f1b", "fill_drain", "zb_h1");
    const GraphPlan found = plan_graph(c.graph, "x", c.cluster, c.request);
    const double least = c.least(step_of);
    RC_ASSERT(found.proof.bound.value <= least * (1 + 1e-9));
    RC_ASSERT(found.proof.value.value == step_of(found.result.best.plan));
    RC_ASSERT(found.proof.value.value >= least * (1 - 1e-9));
    RC_ASSERT((found.proof.row == Seconds{} || found.proof.value <= found.proof.row));
    if (found.proof.optimal()) RC_ASSERT(found.proof.value.value <= least * (1 + 1e-9));
    ++all;
    if (found.proof.value.value > least * (1 + 1e-9)) ++missed;
    // Every node is in one layer, and the stages follow the edges.
    std::vector<int> place(c.graph.nodes.size(), -1);
    std::size_t nodes = 0;
    for (std::size_t layer = 0; layer < found.layers.size(); ++layer) {
      for (const int node : found.layers[layer]) {
        RC_ASSERT(place[static_cast<std::size_t>(node)] == -1);
        place[static_cast<std::size_t>(node)] = static_cast<int>(layer);
        ++nodes;
      }
    }
    RC_ASSERT(nodes == c.planned.graph.nodes.size());
    for (const LayerEdge& edge : c.graph.edges) {
      const int from = place[static_cast<std::size_t>(edge.from)];
      const int to = place[static_cast<std::size_t>(edge.to)];
      RC_ASSERT((from < 0 || to < 0 || from < to));
    }
  }));
  INFO(missed << " of " << all);
  CHECK(missed * 20 <= all);
}

TEST_CASE("however little is searched, the bound is one", "[graph_planner]") {
  REQUIRE(rc::check("random graphs, clusters and work", [] {
    const GraphCase c;
    if (c.planned.graph.nodes.empty()) return;
    const auto downsets = Downsets::of(c.planned.graph, single_nodes(narrow_order(c.planned.graph)));
    const auto work = *rc::gen::element<std::int64_t>(1, 300, 3'000, 30'000, 300'000);
    const GraphSearchResult found = search_graph(*downsets, c.cluster, c.request, kInfinite, work);
    RC_ASSERT(found.bound <= c.least(step_of) * (1 + 1e-9));
  }));
}

TEST_CASE("without a flush the bottleneck is that of the best row", "[graph_planner]") {
  REQUIRE(rc::check("random graphs and clusters", [] {
    GraphCase c;
    const int nodes = static_cast<int>(c.planned.graph.nodes.size());
    if (nodes == 0) return;
    c.request.schedule.name = "pipedream";
    c.request.replicate = false;
    c.request.stages = 1 + test::random_below(std::min(nodes, c.cluster.devices()));
    c.cluster.speed.clear();
    const GraphPlan found = plan_graph(c.graph, "x", c.cluster, c.request);
    const double least = c.least([&](const Plan& plan) {
      double most = 0;
      for (std::size_t s = 0; s < plan.stages.size(); ++s) {
        const StageCosts& stage = plan.costs->stages[s];
        most = std::max(most, (stage.forward + stage.backward_input + stage.backward_weight).value);
        if (s == 0) continue;
        const Link link = plan.costs->network.between(plan.stages[s - 1].ranks[0], plan.stages[s].ranks[0]);
        most = std::max(most, link.time(stage.input).value);
      }
      return most;
    });
    RC_ASSERT(!found.proof.step);
    RC_ASSERT(found.proof.bound.value == Approx(least).epsilon(1e-6));
  }));
}

TEST_CASE("every downset of Inception is a place to cut", "[graph_planner]") {
  const PlanRequest request = graph_request(8, 2);
  const GraphPlan found = plan_graph(inception(), "inception", four_devices(), request);
  CHECK(found.proof.downsets == 221'565);
  CHECK(!found.proof.coarser());
  CHECK((found.proof.row == Seconds{} || found.proof.value <= found.proof.row));
  CHECK(found.proof.gap() < 0.05);
}

TEST_CASE("the user's own cuts count along the first row", "[graph_planner]") {
  const LayerGraph graph = inception();
  PlanRequest request = graph_request(8, std::nullopt);
  request.cuts = {100, 200};
  const GraphPlan found = plan_graph(graph, "inception", four_devices(), request);
  CHECK(found.proof.nodes == 0);
  CHECK(found.result.best.plan.stages[1].first_layer == 100);
  const Profile row = chain_profile(graph, 1);
  CHECK(found.profile.at(1).layers[100].name == row.at(1).layers[100].name);
}

TEST_CASE("hostile graphs are planned none the less, with a bound", "[graph_planner]") {
  LayerGraph graph;
  constexpr int kNodes = 20'000;
  for (int n = 0; n < kNodes; ++n) graph.nodes.push_back(test::plain_node(n, 1 + n % 5, 4, n % 3));
  for (int n = 40; n < kNodes; ++n) graph.edges.push_back({n - 40, n});  // 40 chains side by side
  const PlanRequest request = graph_request(4, 4);
  const GraphPlan found = plan_graph(graph, "x", four_devices(), request);
  CHECK(found.proof.coarser());
  CHECK(found.proof.bound > Seconds{});
  CHECK(found.proof.value >= found.proof.bound);
  std::size_t nodes = 0;
  for (const auto& layer : found.layers) nodes += layer.size();
  CHECK(nodes == kNodes);
}

TEST_CASE("a graph with nothing to plan, or memory for nothing, is refused", "[graph_planner]") {
  LayerGraph graph;
  graph.nodes.push_back(test::plain_node(0, 1, 4, 1'000'000));
  Cluster cluster = four_devices();
  cluster.memory = Bytes{1'000};
  CHECK_THROWS_AS(plan_graph(graph, "x", cluster, {}), RefusedError);
  graph.nodes.front().description = "Input0";
  CHECK_THROWS_AS(plan_graph(graph, "x", four_devices(), {}), InputError);
}

}  // namespace stagecraft
