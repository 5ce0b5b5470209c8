#pragma once

// What boxes of an SVG picture are filled with: colours, and patterns for waits.

#include "stagecraft/schedules/pictures/event_styles.h"
#include "stagecraft/schedules/pictures/svg_writer.h"

namespace stagecraft::pictures {

/// The patterns, for <defs>.
void write_patterns(SvgWriter& svg);
/// The fill of a box of the k-th of n stages of a rank.
[[nodiscard]] std::string fill_of(EventStyle look, std::size_t k, std::size_t n);

}  // namespace stagecraft::pictures
