#pragma once

// Which nodes of a graph.txt the stages have. The row that they are cut from (partitioner/graph/chain.h) is in no file,
// so a plan's numbers of layers say nothing to people.

#include "base/json.h"
#include "partitioner/plan/plan.h"
#include "partitioner/plan/profile.h"

#include <string>

namespace stagecraft::cli {

/// A line per stage: "node2-node17, node20". `row` names layers as chain_profile does.
[[nodiscard]] std::string row_text(const Plan& plan, const Measurement& row);
/// The ids of each stage's nodes, in the order of the row.
[[nodiscard]] Json row_json(const Plan& plan, const Measurement& row);

}  // namespace stagecraft::cli
