// Where PipeDream may cut: against its own walk, and what is left out.

#include "partitioner/pipedream/states.h"

#include "base/error.h"
#include "test/partitioner/graph/random_graph.h"
#include "test/partitioner/pipedream/antichain_walk.h"
#include "test/support/catch.h"

#include <rapidcheck.h>

namespace stagecraft::pipedream {
namespace {

LayerGraph chain(int nodes) {
  LayerGraph graph;
  for (int n = 0; n < nodes; ++n) {
    graph.nodes.push_back(test::plain_node(n, 4, 1, 1));
    if (n > 0) graph.edges.push_back({n - 1, n});
  }
  return graph;
}

}  // namespace

TEST_CASE("states are those of PipeDream's walk over antichains", "[pipedream_states]") {
  REQUIRE(rc::check("against the walk to the letter", [] {
    const LayerGraph graph = test::random_graph(9);
    StateGraph states;
    try {
      states = make_states(graph);
    } catch (const InputError&) {
      return;  // inputs only
    }
    auto expected = test::walk_antichains(states.graph);
    RC_CLASSIFY(states.states.size() > states.graph.nodes.size(), "branching");
    RC_ASSERT(states.states.size() == expected.size());
    for (std::size_t s = 0; s < states.states.size(); ++s) {
      const State& state = states.states[s];
      const std::vector<int> nodes = state.before.nodes();
      const auto found = expected.find({nodes.begin(), nodes.end()});
      RC_ASSERT(found != expected.end());
      RC_ASSERT(state.output == found->second);
      double compute = 0;
      double parameters = 0;
      double activations = 0;
      for (const int node : nodes) {
        const LayerNode& costs = states.graph.nodes[static_cast<std::size_t>(node)];
        compute += costs.compute().value;
        parameters += static_cast<double>(costs.parameters.value);
        activations += static_cast<double>(costs.activation.value);
      }
      RC_ASSERT(state.compute == compute);
      RC_ASSERT(state.parameters == parameters);
      RC_ASSERT(state.activations == activations);
      std::vector<int> contained;
      for (std::size_t k = 0; k < states.states.size(); ++k) {
        if (k != s && state.before.includes(states.states[k].before))
          contained.push_back(static_cast<int>(k));
      }
      RC_ASSERT(states.contained[s] == contained);
      RC_ASSERT((contained.empty() || contained.back() < static_cast<int>(s)));
    }
    RC_ASSERT(states.contained.back().size() + 1 == states.states.size());
  }));
}

TEST_CASE("a chain can be cut behind every node", "[pipedream_states]") {
  const StateGraph states = make_states(chain(5));
  REQUIRE(states.states.size() == 5);
  for (std::size_t s = 0; s < 5; ++s) {
    CHECK(states.states[s].compute == 4.0 * static_cast<double>(s + 1));
    CHECK(states.states[s].output == 1);
  }
}

TEST_CASE("inputs and unused outputs are left out, what stays keeps its place", "[pipedream_states]") {
  LayerGraph graph = chain(4);
  graph.nodes[0].description = "Input0";
  graph.nodes.push_back(test::plain_node(4, 4, 1, 1));
  graph.nodes.back().description = "__getitem__(1)";
  graph.edges.push_back({1, 4});
  const StateGraph states = make_states(graph);
  CHECK(states.original == std::vector<int>{1, 2, 3});
  CHECK(states.states.back().compute == 12);
}

TEST_CASE("a second source comes in with what needs it, or not at all", "[pipedream_states]") {
  LayerGraph graph = chain(3);
  graph.nodes.push_back(test::plain_node(3, 40, 1, 1));   // needed by the last of the chain
  graph.nodes.push_back(test::plain_node(4, 400, 1, 1));  // by nobody
  graph.edges.push_back({3, 2});
  const StateGraph states = make_states(graph);
  REQUIRE(states.states.size() == 3);
  CHECK(states.states[1].compute == 8);
  CHECK(states.states[2].compute == 52);
}

TEST_CASE("graphs with nothing in them or too many places to cut are refused", "[pipedream_states]") {
  LayerGraph inputs;
  inputs.nodes.push_back(test::plain_node(0, 0, 1, 0));
  inputs.nodes.back().description = "Input";
  CHECK_THROWS_AS(make_states(inputs), InputError);
  CHECK_THROWS_AS(make_states(LayerGraph{}), InputError);
  CHECK_THROWS_AS(make_states(chain(5000)), RefusedError);
  LayerGraph fan = chain(1);  // 2^16 sets of branches
  for (int branch = 1; branch <= 16; ++branch) {
    fan.nodes.push_back(test::plain_node(branch, 4, 1, 1));
    fan.edges.push_back({0, branch});
  }
  CHECK_THROWS_AS(make_states(fan), RefusedError);
}

}  // namespace stagecraft::pipedream
