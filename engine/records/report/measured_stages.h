#pragma once

// What a run measured of its stages, as replan() takes it.

#include "engine/records/report/report.h"
#include "partitioner/advice/replan.h"

#include <vector>

namespace stagecraft {

/// Medians of single actions; 0 where the run had none of a kind.
[[nodiscard]] std::vector<MeasuredStage> measured_stages(const RunReport& report);

}  // namespace stagecraft
