#pragma once

// Whether a plan request can be served at all, before anything is searched.

#include "partitioner/search/layout.h"
#include "partitioner/search/planner.h"

#include <vector>

namespace stagecraft::planning {

/// The parts of a request that the checks are about.
struct RequestScope {
  const PlanRequest& request;
  const Cluster& cluster;
  const Schedule& schedule;
  int cuttable;  ///< layers that may be stages of their own
};

/// Throws InputError for a request that no layout of so many stages per rank can serve.
void check_request(const RequestScope& scope, PlacementKind kind, int stages_per_rank);

/// The stage counts asked for, or all there are room for. Throws InputError when there is none.
[[nodiscard]] std::vector<int> stage_counts(const RequestScope& scope, int stages_per_rank);

/// What its layouts with replicas may have.
[[nodiscard]] LayoutLimits layout_limits(const RequestScope& scope);

/// Those of a shape that are asked for.
[[nodiscard]] Layouts wide_layouts(const RequestScope& scope, PlacementKind kind, int stages_per_rank);

}  // namespace stagecraft::planning
