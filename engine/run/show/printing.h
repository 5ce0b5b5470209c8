#pragma once

// What a run shows people: the tables before the first step and the lines after. Pure: text out of values.

#include "engine/records/metrics/metrics.h"
#include "engine/run/resolve/setup.h"

#include <optional>
#include <string>
#include <vector>

namespace stagecraft {

/// Model, plan, schedule, batch arithmetic and memory per rank, one table each.
[[nodiscard]] std::string start_up_tables(const RunSetup& setup);
/// Of a run that goes on with another plan: what is new.
[[nodiscard]] std::string next_plan_tables(const RunSetup& setup);

/// "step    100/5000   loss 2.34123   norm 1.234   lr 1.00e-03   12.3 ms   12.5 k tokens/s"
/// `left`: until the run's end, as it goes now; said where it is a minute or more.
[[nodiscard]] std::string step_line(const MetricsRecord& record, std::int64_t steps,
                                    std::optional<Seconds> left = std::nullopt);
/// "valid   100/5000   loss 2.31 nats/token   accuracy 40.1 %   123 ms"
[[nodiscard]] std::string validation_line(const MetricsRecord& record, std::int64_t steps, const Loss& loss);

}  // namespace stagecraft
