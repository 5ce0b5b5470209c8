#pragma once

// What `replan` found, in words and as JSON.

#include "base/json.h"
#include "engine/records/report/report.h"
#include "partitioner/advice/replan.h"

#include <string>
#include <vector>

namespace stagecraft::cli {

/// The stages of a run beside their profile; `running` is the plan that ran.
[[nodiscard]] std::string measured_text(const RunReport& report, const std::vector<MeasuredStage>& measured,
                                        const std::vector<Replanned>& answers, const Plan& running);
/// Whether each answer pays, where a change of plans costs `switch_cost`.
[[nodiscard]] std::string answers_text(const std::vector<Replanned>& answers, const RunReport& report,
                                       Seconds switch_cost);
[[nodiscard]] Json answer_json(const Replanned& answer, const RunReport& report, Seconds switch_cost);

}  // namespace stagecraft::cli
