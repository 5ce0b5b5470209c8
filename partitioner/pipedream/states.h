#pragma once

// Where PipeDream's optimizer may cut a graph (optimizer_graph_hierarchical.py and graph.py; the paper,
// SOSP'19 3.1, has a chain of layers only).
//
// Its states are antichains: the last nodes of everything that lies before a cut. It walks from the graph's
// first source, and from an antichain goes on by one node that follows something before the cut, with
// whatever that node needs. Here a state is the set before the cut itself, which its antichain determines,
// and the walk is the same one; a state can be reached from another exactly when it contains it.
//
// What it leaves out, and so do we: inputs and unused outputs (graph/dropped.h), and every node that the walk
// never reaches, such as a second source with what only that one leads to. Its "first" source is the first in
// the file.

#include "partitioner/graph/layer_graph.h"
#include "partitioner/graph/node_set.h"

#include <vector>

namespace stagecraft::pipedream {

/// One place to cut, with sums over all nodes before it.
struct State {
  NodeSet before;
  double compute = 0;      ///< seconds, forward and backward
  double activations = 0;  ///< bytes, of all of them
  double parameters = 0;   ///< bytes
  /// Bytes that its code sends over this cut: of the last nodes and of those earlier ones that have a reader
  /// which is neither one of the last nodes nor below the same one; some of those readers lie before the cut
  /// all the same, so this can be more than what crosses.
  double output = 0;
};

/// Where a stretch of nodes begins: with the first node (0), or behind state `begin - 1`.
using Begin = int;

struct StateGraph {
  LayerGraph graph;           ///< without what is left out before the walk
  std::vector<int> original;  ///< of every node of `graph`: its place in the graph given
  std::vector<State> states;  ///< a state stands behind all that it contains; the last is everything
  std::vector<std::vector<int>> contained;  ///< of every state: the states within it, ascending

  [[nodiscard]] const State& at(int state) const { return states[to_size(state)]; }
  /// Of the nodes that lie between a beginning and a state, the sum of a figure.
  [[nodiscard]] double between(Begin begin, int state, double State::*sum) const {
    return at(state).*sum - (begin == 0 ? 0 : at(begin - 1).*sum);
  }
};

/// More are not walked to: the optimization takes their square.
inline constexpr std::size_t kMostStates = 4000;

/// Throws InputError when nothing is left to plan, RefusedError when there are more states than kMostStates.
[[nodiscard]] StateGraph make_states(const LayerGraph& graph);

}  // namespace stagecraft::pipedream
