#pragma once

// `plan` of a graph.txt: over all cuts of the graph, with the nodes of every stage.

#include "stagecraft/cli/planning.h"

#include <string>

namespace stagecraft::cli {

/// Plans, writes the plan if a path is given, and prints it with its nodes and the proof. Throws what
/// plan_graph throws.
void plan_graph_from(const std::string& path, const Cluster& cluster, const PlanRequest& request,
                     const PlanOutput& output);

}  // namespace stagecraft::cli
