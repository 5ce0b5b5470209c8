// A graph as a chain: every cut is a cut of the graph, with exactly what crosses it.

#include "partitioner/graph/chain.h"

#include "base/error.h"
#include "partitioner/graph/dropped.h"
#include "partitioner/graph/graph_text.h"
#include "test/partitioner/graph/random_graph.h"
#include "test/support/catch.h"

#include <rapidcheck.h>

#include <set>

namespace stagecraft {

TEST_CASE("the row follows every edge, and its boundaries are what crosses", "[chain]") {
  REQUIRE(rc::check("random graphs", [] {
    const LayerGraph graph = test::random_graph(12);
    Planned planned;
    try {
      planned = without_dropped(graph);
    } catch (const InputError&) {
      return;  // nothing is left
    }
    const std::vector<int> order = row_of(planned.graph);
    const Profile profile = chain_profile(graph, 4);
    const std::vector<LayerProfile>& layers = profile.at(4).layers;
    validate(profile, "x");
    RC_ASSERT(order.size() == planned.graph.nodes.size());
    RC_ASSERT(layers.size() == order.size());
    std::set<int> before;
    const std::vector<std::vector<int>> reads = planned.graph.predecessors();
    for (std::size_t n = 0; n < order.size(); ++n) {
      for (const int read : reads[static_cast<std::size_t>(order[n])]) {
        RC_ASSERT(before.contains(read));
      }
      before.insert(order[n]);
      std::set<int> crossing;
      for (const LayerEdge& edge : planned.graph.edges) {
        if (before.contains(edge.from) && !before.contains(edge.to)) crossing.insert(edge.from);
      }
      Bytes bytes;
      for (const int node : crossing) bytes += planned.graph.nodes[static_cast<std::size_t>(node)].activation;
      RC_ASSERT(layers[n].output == bytes);
      const LayerNode& node = planned.graph.nodes[static_cast<std::size_t>(order[n])];
      RC_ASSERT(layers[n].forward.median == node.forward);
      RC_ASSERT(layers[n].backward_input.median + layers[n].backward_weight.median == node.backward);
    }
  }));
}

TEST_CASE("branches that could run side by side lie side by side", "[chain]") {
  LayerGraph graph;  // 0 forks into 1 - 2 and 3 - 4, which join in 5
  for (const int bytes : {8, 8, 8, 8, 1, 8}) {
    graph.nodes.push_back(test::plain_node(static_cast<int>(graph.nodes.size()), 4, bytes, bytes % 2));
  }
  graph.edges = {{0, 1}, {1, 2}, {0, 3}, {3, 4}, {2, 5}, {4, 5}};
  CHECK(row_of(graph) == std::vector<int>{0, 1, 3, 4, 2, 5});  // 4 before 2: fewer bytes cross
  const Profile profile = chain_profile(graph, 1);
  const std::vector<LayerProfile>& layers = profile.at(1).layers;
  CHECK(layers[1].output == Bytes{16});  // 0 and 1
  CHECK(layers[2].output == Bytes{16});  // 1 and 3
  CHECK(layers[3].output == Bytes{9});   // 1 and 4
  CHECK(layers[5].output == Bytes{0});
  CHECK(layers[0].backward_weight.median == Seconds{});  // no parameters
  CHECK(layers[3].backward_weight.median == layers[3].backward_input.median);
  CHECK(layers[3].kept_for_weight == Bytes{1});
}

TEST_CASE("PipeDream's profiles become chains of all their work", "[chain]") {
  for (const char* name : {"vgg16", "gnmt", "inception_v3"}) {
    INFO(name);
    const LayerGraph graph =
        read_graph(std::string(STAGECRAFT_TEST_DATA "/pipedream/") + name + ".graph.txt");
    const Planned planned = without_dropped(graph);
    double all = 0;
    for (const LayerNode& node : planned.graph.nodes) all += node.compute().value;
    double sum = 0;
    const Profile profile = chain_profile(graph, 1);
    for (const LayerProfile& layer : profile.at(1).layers) {
      sum += (layer.forward.median + layer.backward_input.median + layer.backward_weight.median).value;
    }
    CHECK(sum == Approx(all));
  }
}

TEST_CASE("a chain is a graph", "[chain]") {
  Measurement measurement;
  measurement.layers.resize(3);
  measurement.layers[1].name = "middle";
  measurement.layers[1].backward_weight.median = Seconds{2};
  measurement.layers[1].backward_input.median = Seconds{1};
  const LayerGraph graph = layer_graph(measurement);
  CHECK(graph.edges.size() == 2);
  CHECK(graph.nodes[1].id == "middle");
  CHECK(graph.nodes[1].backward == Seconds{3});
}

}  // namespace stagecraft
