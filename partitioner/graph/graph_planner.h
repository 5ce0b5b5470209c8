#pragma once

// Our own planner on graphs with branches: every downset of the graph is a place to cut.
//
// All nested downsets are searched (graph_search.h). The best make rows, in which their stages are runs, and
// the planner of chains plans these, so that schedules, replicas, links and memory are priced as they always
// are; unless their plan is at the bound, so is the row that is narrow everywhere (chain.h). The best plan is
// handed back with the row it is of, and with a bound that holds for all cuts of the graph.
//
// A graph with more downsets than can be gone over is coarsened (coarsening.h). The bound is then the one
// that needs no cuts, and holds for the graph as it is.

#include "stagecraft/partitioner/graph/layer_graph.h"
#include "stagecraft/partitioner/planner.h"

#include <string>
#include <vector>

namespace stagecraft {

/// What is known of a graph's plan.
struct GraphProof {
  std::size_t nodes = 0;     ///< planned: without inputs and unused outputs
  std::size_t blocks = 0;    ///< that were not cut through: as many as nodes, or fewer where it was coarsened
  int downsets = 0;          ///< of the blocks
  bool step = true;          ///< value and bound are of a step; otherwise of the bottleneck per micro-batch
  Seconds value;             ///< the plan's
  Seconds bound;             ///< no plan of the layouts, with any cuts of the graph, is below
  bool whole_family = true;  ///< of all layouts; otherwise of equally wide stages only
  /// Of the plan of the row that is narrow everywhere, with nothing but its prefixes to cut at; 0: nothing
  /// fits there, or a plan was at the bound before.
  Seconds row;

  /// Every downset is a prefix of one row.
  [[nodiscard]] bool is_chain() const { return to_size(downsets) == nodes + 1; }
  [[nodiscard]] bool coarser() const { return blocks < nodes; }
  [[nodiscard]] double gap() const { return bound > Seconds{} ? value / bound - 1 : 0; }
  [[nodiscard]] bool optimal() const { return gap() < 1e-9; }
};

struct GraphPlan {
  Profile profile;                       ///< the row
  std::vector<std::vector<int>> layers;  ///< nodes of each of its layers: places in the graph given
  PlanResult result;
  GraphProof proof;
};

/// Micro-batches are the graph's mini-batches, and count as `request.micro_batch_size` samples. With cuts of
/// the user's own, which count along the first row, nothing else is looked at. Throws as make_plan does, and
/// InputError for a graph in which there is nothing to plan.
[[nodiscard]] GraphPlan plan_graph(const LayerGraph& graph, const std::string& model, const Cluster& cluster,
                                   const PlanRequest& request);

}  // namespace stagecraft
