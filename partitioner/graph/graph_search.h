#pragma once

// Which layouts and which nested downsets of a graph make the shortest step, over all of them.
//
// Synchronous schedules. For a layout every bound of planning/step_bound.h is a sum over stages and cuts, so
// the least it can be over all nested downsets comes out of one pass (downset_partition.h). Two kinds of
// passes are made: the largest of the stages' own work, with the pipeline's filling before it and its
// draining behind, is made as small as it can be; and weighted means of bounds, each the critical path of a
// program simulated before, as cut_search.h does it on a chain. The cuts that come up are simulated. Where
// bound and step do not meet, cuts are told apart by how much compute lies before them, and each half is
// looked at again. Asynchronous ones: the steady-state bottleneck (planning/occupancy.h), which is exact
// here.
//
// Memory is not looked at: bounds hold with and without a cap, but cuts found may not fit. What comes out is
// for the planner of chains: a row in which those downsets are prefixes.

#include "stagecraft/partitioner/graph/downset_partition.h"
#include "stagecraft/partitioner/planner.h"
#include "stagecraft/partitioner/planning/layout.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace stagecraft {

/// What no pipeline of the graph takes less than, of the layouts for this request, without a look at where it
/// can be cut: all work spread evenly, the largest node, one micro-batch's way forward and back.
[[nodiscard]] double least_of_any_cuts(const LayerGraph& graph, const Cluster& cluster,
                                       const PlanRequest& request);

/// A pipeline of the graph.
struct GraphCandidate {
  planning::Layout layout;
  NestedCuts cuts;
  double seconds = 0;  ///< simulated step; asynchronous: bottleneck of a micro-batch
};

struct GraphSearchResult {
  std::vector<GraphCandidate> found;  ///< the best of a layout each, best first; may be empty
  /// No pipeline of the layouts takes less than this, or than `to_beat` where that is less.
  double bound = 0;
  bool whole_family = true;  ///< otherwise of equally wide stages only
};

/// Looks for less than `to_beat` seconds, until all layouts are done or `work` is: steps gone over, times
/// stages. `request` is one that the planner takes for this cluster, of a schedule that is not searched for.
[[nodiscard]] GraphSearchResult search_graph(const Downsets& downsets, const Cluster& cluster,
                                             const PlanRequest& request, double to_beat, std::int64_t work);

}  // namespace stagecraft
