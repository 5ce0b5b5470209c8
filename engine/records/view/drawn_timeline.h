#pragma once

// Timelines as the page draws them: numbers in rows, and where each rank's time went, step by step.

#include "base/json.h"
#include "schedules/program/timeline.h"

namespace stagecraft {

/// Every style as the page needs it: key, label, letter, colours. Events name styles by their place in it.
[[nodiscard]] Json style_table();

/// {"ranks": names, "length_ms", "events": [[rank, style, stage, number, from, to, begin_ms, ms, bytes?], ...],
/// "steps"}. `number` is a micro-batch or, of steps and sums, a group; `from` and `to` are stages, -1 where
/// nothing travels. Null without events; `left_out` steps at the beginning where there are more than
/// kMostDrawn events.
[[nodiscard]] Json drawn_timeline(const Timeline& timeline);
inline constexpr std::size_t kMostDrawn = 40'000;

/// Where the ranks' time went: {"steps": numbers, "window_ms": per step, "ms": [step][rank][style], idle
/// last}. Of the newest steps, so many that there are kMostShares rows. Null without events.
[[nodiscard]] Json rank_shares(const Timeline& timeline);
inline constexpr std::size_t kMostShares = 2048;

}  // namespace stagecraft
