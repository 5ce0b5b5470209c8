#pragma once

// What is done with a run directory's files once they are read: `report` in all its forms.

#include "engine/records/report/report.h"
#include "test/fuzz/judge_files.h"

namespace stagecraft::fuzz {

/// A run of two stages on two ranks, with costs and a prediction, of which nothing was measured yet.
[[nodiscard]] RunFiles empty_run();

/// Far slower than reading, so only for one input of so many.
inline constexpr std::size_t kReportOneOf = 8;

/// Reports the run as text, JSON, page and picture.
void judge(const RunFiles& run);

}  // namespace stagecraft::fuzz
