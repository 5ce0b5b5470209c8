// Chains behind forks become one node; nothing is lost on the way.

#include "partitioner/graph/branches.h"

#include "partitioner/pipedream/states.h"
#include "test/partitioner/graph/random_graph.h"
#include "test/support/catch.h"

#include <rapidcheck.h>

#include <algorithm>

namespace stagecraft {

TEST_CASE("a chain behind a fork becomes one node, the trunk stays as it is", "[branches]") {
  LayerGraph graph;  // 0 - 1 forks into 2 - 3 - 4 and 5, which join in 6 - 7
  for (int n = 0; n < 8; ++n) graph.nodes.push_back(test::plain_node(n, 4, 10 + n, 1));
  graph.edges = {{0, 1}, {1, 2}, {2, 3}, {3, 4}, {1, 5}, {4, 6}, {5, 6}, {6, 7}};
  const CompressedGraph compressed = compress_branches(graph);
  CHECK(compressed.members == std::vector<std::vector<int>>{{0}, {1}, {2, 3, 4}, {5}, {6}, {7}});
  const LayerNode& merged = compressed.graph.nodes[2];
  CHECK(merged.id == "node2+2");
  CHECK(merged.compute().value == 12);
  CHECK(merged.parameters == Bytes{3});
  CHECK(merged.activation == Bytes{14});
  CHECK(compressed.graph.edges.size() == 6);
}

TEST_CASE("compressing keeps every node, all work, and only cuts that were there", "[branches]") {
  REQUIRE(rc::check("random graphs", [] {
    const LayerGraph graph = test::random_graph(10);
    const CompressedGraph compressed = compress_branches(graph);
    std::vector<int> seen;
    double work = 0;
    for (const auto& members : compressed.members) seen.insert(seen.end(), members.begin(), members.end());
    for (const LayerNode& node : compressed.graph.nodes) work += node.compute().value;
    std::sort(seen.begin(), seen.end());
    RC_ASSERT(seen.size() == graph.nodes.size());
    RC_ASSERT(std::adjacent_find(seen.begin(), seen.end()) == seen.end());
    double all = 0;
    for (const LayerNode& node : graph.nodes) all += node.compute().value;
    RC_ASSERT(work == all);
    RC_ASSERT(topological_order(compressed.graph).size() == compressed.graph.nodes.size());
    std::vector<int> place(graph.nodes.size());
    for (std::size_t n = 0; n < compressed.members.size(); ++n) {
      for (const int member : compressed.members[n])
        place[static_cast<std::size_t>(member)] = static_cast<int>(n);
    }
    for (const LayerEdge& edge : graph.edges) {
      const int from = place[static_cast<std::size_t>(edge.from)];
      const int to = place[static_cast<std::size_t>(edge.to)];
      const bool there = std::any_of(compressed.graph.edges.begin(), compressed.graph.edges.end(),
                                     [&](const LayerEdge& e) { return e.from == from && e.to == to; });
      RC_ASSERT((from == to || there));
    }
  }));
}

}  // namespace stagecraft
