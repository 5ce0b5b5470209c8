// Downsets against all subsets of nodes; coarser ones are some of them; hostile graphs are soon done with.

#include "stagecraft/partitioner/graph/downsets.h"

#include "stagecraft/partitioner/graph/chain.h"
#include "stagecraft/partitioner/graph/coarsening.h"
#include "stagecraft/partitioner/graph/dropped.h"
#include "stagecraft/partitioner/graph/graph_text.h"
#include "test/partitioner/graph/random_graph.h"
#include "test/support/catch.h"

#include <rapidcheck.h>

#include <algorithm>
#include <map>
#include <set>

namespace stagecraft {
namespace {

using Nodes = std::set<int>;

Nodes nodes_of(const Downsets& downsets, int downset) {
  const std::vector<int> nodes = downsets.nodes(downset);
  return {nodes.begin(), nodes.end()};
}

bool is_downset(const LayerGraph& graph, const Nodes& nodes) {
  return std::all_of(graph.edges.begin(), graph.edges.end(), [&](const LayerEdge& edge) {
    return nodes.contains(edge.from) || !nodes.contains(edge.to);
  });
}

/// By enumeration of all subsets.
std::set<Nodes> all_downsets(const LayerGraph& graph) {
  std::set<Nodes> all;
  for (unsigned subset = 0; subset < 1U << graph.nodes.size(); ++subset) {
    Nodes nodes;
    for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
      if ((subset >> n & 1U) != 0) nodes.insert(static_cast<int>(n));
    }
    if (is_downset(graph, nodes)) all.insert(std::move(nodes));
  }
  return all;
}

/// Sums and bytes are those of the nodes, and steps lead to the sets that are one block larger.
void check_figures(const LayerGraph& graph, const Blocks& blocks, const Downsets& downsets) {
  std::map<Nodes, int> places;
  for (int d = 0; d < downsets.size(); ++d) places[nodes_of(downsets, d)] = d;
  RC_ASSERT(places.size() == static_cast<std::size_t>(downsets.size()));
  RC_ASSERT(nodes_of(downsets, 0).empty());
  RC_ASSERT(nodes_of(downsets, downsets.all()).size() == graph.nodes.size());
  for (const auto& [nodes, d] : places) {
    NodeSums sums;
    double crossing = 0;
    for (const int n : nodes) {
      const LayerNode& node = graph.nodes[static_cast<std::size_t>(n)];
      sums.forward += node.forward.value;
      sums.backward_weight += node.backward_weight().value;
      sums.backward_input += (node.backward - node.backward_weight()).value;
      sums.parameters += static_cast<double>(node.parameters.value);
      const bool read =
          std::any_of(graph.edges.begin(), graph.edges.end(), [n = n, &nodes = nodes](const LayerEdge& edge) {
            return edge.from == n && !nodes.contains(edge.to);
          });
      if (read) crossing += static_cast<double>(node.activation.value);
    }
    RC_ASSERT(downsets.sums(d).forward == sums.forward);
    RC_ASSERT(downsets.sums(d).backward_input == sums.backward_input);
    RC_ASSERT(downsets.sums(d).backward_weight == sums.backward_weight);
    RC_ASSERT(downsets.sums(d).parameters == sums.parameters);
    RC_ASSERT(downsets.crossing(d) == crossing);
    std::set<int> reached;
    for (const Downsets::Step& step : downsets.steps(d)) {
      Nodes more = nodes;
      const std::vector<int>& block = blocks[static_cast<std::size_t>(step.block)];
      more.insert(block.begin(), block.end());
      RC_ASSERT(step.to > d);
      RC_ASSERT(places.at(more) == step.to);
      reached.insert(step.block);
    }
    for (std::size_t b = 0; b < blocks.size(); ++b) {
      if (nodes.contains(blocks[b].front())) continue;
      Nodes more = nodes;
      more.insert(blocks[b].begin(), blocks[b].end());
      RC_ASSERT(is_downset(graph, more) == reached.contains(static_cast<int>(b)));
    }
  }
}

/// Costs that say nothing.
LayerGraph plain_graph(int nodes) {
  LayerGraph graph;
  for (int n = 0; n < nodes; ++n) graph.nodes.push_back(test::plain_node(n, 1 + n % 5, 4, n % 3));
  return graph;
}

/// Work is bounded by the limits: a graph whose downsets are not to be counted is soon coarse enough.
void check_coarse(const LayerGraph& graph) {
  const DownsetLimits limits;
  const Downsets coarsened = coarsen(graph, limits);
  CHECK(coarsened.blocks().size() < graph.nodes.size());
  CHECK(coarsened.blocks().size() > 1);
  CHECK(static_cast<std::size_t>(coarsened.size()) <= limits.downsets);
  CHECK(coarsened.steps() <= limits.steps);
  std::size_t nodes = 0;
  for (const auto& block : coarsened.blocks()) nodes += block.size();
  CHECK(nodes == graph.nodes.size());
}

}  // namespace

TEST_CASE("downsets are all sets of nodes with what they read", "[downsets]") {
  REQUIRE(rc::check("random graphs", [] {
    const LayerGraph graph = test::random_graph(9);
    const auto downsets = Downsets::of(graph, single_nodes(narrow_order(graph)));
    RC_ASSERT(downsets.has_value());
    std::set<Nodes> found;
    for (int d = 0; d < downsets->size(); ++d) found.insert(nodes_of(*downsets, d));
    RC_ASSERT(found == all_downsets(graph));
    check_figures(graph, single_nodes(narrow_order(graph)), *downsets);
  }));
}

TEST_CASE("PipeDream's profiles have as many downsets as their branches make", "[downsets]") {
  const std::map<std::string, int> expected{
      {"alexnet", 23}, {"vgg16", 41}, {"squeezenet1_0", 100}, {"gnmt", 562}, {"resnet50", 241}};
  for (const auto& [name, count] : expected) {
    INFO(name);
    const Planned planned =
        without_dropped(read_graph(std::string(STAGECRAFT_TEST_DATA "/pipedream/") + name + ".graph.txt"));
    CHECK(Downsets::of(planned.graph, single_nodes(narrow_order(planned.graph)))->size() == count);
  }
}

TEST_CASE("more downsets than the limits allow are none", "[downsets]") {
  const LayerGraph graph = plain_graph(6);  // nobody reads: every set is one
  CHECK(Downsets::of(graph, single_nodes(narrow_order(graph)), {.downsets = 64})->size() == 64);
  CHECK(!Downsets::of(graph, single_nodes(narrow_order(graph)), {.downsets = 63}));
  CHECK(!Downsets::of(graph, single_nodes(narrow_order(graph)), {.downsets = 64, .steps = 191}));
  CHECK(Downsets::of(graph, single_nodes(narrow_order(graph)), {.downsets = 64, .steps = 192}));
}

TEST_CASE("a coarsened graph's downsets are some of the graph's", "[downsets]") {
  REQUIRE(rc::check("random graphs and limits", [] {
    const LayerGraph graph = test::random_graph(9);
    const std::set<Nodes> all = all_downsets(graph);
    const DownsetLimits limits{.downsets = static_cast<std::size_t>(2 + test::random_below(40))};
    const Downsets coarsened = coarsen(graph, limits);
    RC_ASSERT(static_cast<std::size_t>(coarsened.size()) <= limits.downsets);
    const bool coarser = coarsened.blocks().size() < graph.nodes.size();
    RC_ASSERT(coarser || coarsened.size() == static_cast<int>(all.size()));
    for (int d = 0; d < coarsened.size(); ++d) RC_ASSERT(all.contains(nodes_of(coarsened, d)));
    check_figures(graph, coarsened.blocks(), coarsened);
    Nodes before;  // blocks are in an order along the edges
    for (const auto& block : coarsened.blocks()) {
      before.insert(block.begin(), block.end());
      RC_ASSERT(is_downset(graph, before));
    }
  }));
}

TEST_CASE("a graph coarsened to one run is one run, however the shares of its nodes round", "[downsets]") {
  for (int nodes = 2; nodes <= 30; ++nodes) CHECK(coarsen(plain_graph(nodes), {.downsets = 2}).size() == 2);
}

TEST_CASE("graphs whose downsets explode are coarsened, whatever their shape", "[downsets]") {
  constexpr int kMany = 20'000;
  check_coarse(plain_graph(1'000));  // nobody reads anything
  check_coarse(plain_graph(kMany));
  LayerGraph chain = plain_graph(kMany);
  for (int n = 1; n < kMany; ++n) chain.edges.push_back({n - 1, n});
  check_coarse(chain);
  LayerGraph ladder = plain_graph(kMany);  // two chains with rungs, every tenth
  for (int n = 2; n < kMany; ++n) ladder.edges.push_back({n - 2, n});
  for (int n = 20; n < kMany; n += 20) ladder.edges.push_back({n, n + 1});
  check_coarse(ladder);
  LayerGraph layers = plain_graph(1'000);  // everybody in one half reads all of the other
  for (int from = 0; from < 500; ++from) {
    for (int to = 500; to < 1'000; ++to) layers.edges.push_back({from, to});
  }
  check_coarse(layers);
  LayerGraph lanes = plain_graph(1 + 30 * 100);  // a fork into 30 chains
  for (int lane = 0; lane < 30; ++lane) {
    for (int n = 0; n < 100; ++n) {
      const int node = 1 + lane * 100 + n;
      lanes.edges.push_back({n == 0 ? 0 : node - 1, node});
    }
  }
  check_coarse(lanes);
}

}  // namespace stagecraft
