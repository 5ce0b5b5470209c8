#include "test/partitioner/graph/random_graph.h"

#include <fmt/format.h>
#include <rapidcheck.h>

namespace stagecraft::test {

LayerNode plain_node(int index, double work, std::int64_t activation, std::int64_t parameters) {
  return {fmt::format("node{}", index),
          fmt::format("Linear({})", index),
          Seconds{work / 4},
          Seconds{work * 3 / 4},
          Bytes{activation},
          Bytes{parameters}};
}

int random_below(int end) { return *rc::gen::resize(rc::kNominalSize, rc::gen::inRange(0, end)); }

LayerGraph random_graph(int most) {
  LayerGraph graph;
  const int nodes = (most + 1) / 2 + random_below(most / 2 + 1);
  const int loose = random_below(4) == 0 ? 3 : 20;  // one node in so many follows nothing
  const int dense = 1 + random_below(4);            // one pair in so many has an edge more
  for (int to = 0; to < nodes; ++to) {
    graph.nodes.push_back(
        test::plain_node(to, 4 * random_below(9), random_below(30), random_below(2) * random_below(30)));
    const int before = to > 0 && random_below(loose) > 0 ? random_below(to) : -1;
    for (int from = 0; from < to; ++from) {
      if (from == before || (before >= 0 && random_below(2 + dense) == 0)) graph.edges.push_back({from, to});
    }
  }
  const auto successors = graph.successors();
  const auto predecessors = graph.predecessors();
  for (std::size_t n = 0; n < graph.nodes.size(); ++n) {
    if (random_below(5) != 0) continue;
    if (predecessors[n].empty()) graph.nodes[n].description = "Input";
    if (successors[n].empty()) graph.nodes[n].description = "__getitem__(1)";
  }
  return graph;
}

}  // namespace stagecraft::test
