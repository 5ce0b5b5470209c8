#pragma once

// What `explain` prints: why a plan is as it is.

#include "partitioner/advice/explain.h"

#include <string>

namespace stagecraft::cli {

/// Why the cuts are where they are, what the step is made of, and what else would bring: `plan` is the one
/// explained, planned from `measurement` on `cluster`.
[[nodiscard]] std::string explain_text(const Explanation& explained, const Plan& plan,
                                       const Measurement& measurement, const Cluster& cluster);

}  // namespace stagecraft::cli
