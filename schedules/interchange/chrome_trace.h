#pragma once

// Timelines as Chrome traces.

#include "base/json.h"
#include "schedules/program/timeline.h"

#include <string>

namespace stagecraft {

/// Chrome trace format: opens in ui.perfetto.dev, one process per rank, one row per lane, waits named for
/// their cause. Our own fields travel in each event's `args`.
[[nodiscard]] Json to_chrome_trace(const Timeline& timeline);
/// Reads back what to_chrome_trace wrote; times agree to a rounding of the last digits. Throws InputError,
/// also for ranks and times beyond any run's, which pictures would have to make room for.
[[nodiscard]] Timeline timeline_from_chrome_trace(const Json& json, const std::string& file);

}  // namespace stagecraft
