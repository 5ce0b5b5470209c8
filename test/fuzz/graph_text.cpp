// Profiles of PipeDream's profiler: whatever is read can be put in a row as a chain, and where it has few
// places to cut, PipeDream's optimizer finds a plan of all its nodes that is no slower than data parallelism.

#include "partitioner/graph/graph_text.h"

#include "base/error.h"
#include "partitioner/graph/branches.h"
#include "partitioner/graph/chain.h"
#include "partitioner/pipedream/optimizer.h"
#include "test/fuzz/judge.h"
#include "test/fuzz/target.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>

FUZZ_TARGET(graph_text) {
  using namespace stagecraft;
  LayerGraph graph;
  try {
    graph = graph_from_text(std::string(data, data + size), "x");
  } catch (const InputError&) {
    return 0;
  }
  fuzz::accepted();
  fuzz::require(row_of(graph).size() == graph.nodes.size(), "every node has a place in the row");
  try {
    validate(chain_profile(graph, 1), "x");
    const pipedream::StateGraph states = pipedream::make_states(compress_branches(graph).graph);
    if (states.states.size() > 100) return 0;  // only slow
    pipedream::Options options;
    options.levels = {{2, 1e9}, {3, 1e8}};
    options.compression = 1;
    const pipedream::Result result = pipedream::optimize(states, options);
    std::size_t nodes = 0;
    for (const pipedream::Stage& stage : result.stages) nodes += stage.nodes.size();
    fuzz::require(nodes == states.states.back().before.nodes().size(), "every node is in one stage");
    fuzz::require(std::isfinite(result.bottleneck) && result.bottleneck <= result.data_parallel * (1 + 1e-9),
                  "no slower than data parallelism");
  } catch (const InputError&) {    // nothing but inputs
  } catch (const RefusedError&) {  // too many places to cut
  }
  return 0;
}
