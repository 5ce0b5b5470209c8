#pragma once

// What PipeDream's optimizer planned, in words and as JSON.

#include "base/json.h"
#include "cli/pipedream_graph.h"
#include "partitioner/plan/cluster.h"

#include <string>

namespace stagecraft::cli {

/// `profile` is the path of what was planned.
[[nodiscard]] std::string pipedream_text(const std::string& profile, const Cluster& cluster,
                                         const pipedream::Options& options, const PreparedGraph& prepared,
                                         const pipedream::Result& result);
[[nodiscard]] Json pipedream_json(const std::string& profile, const pipedream::Options& options,
                                  const PreparedGraph& prepared, const pipedream::Result& result);

}  // namespace stagecraft::cli
