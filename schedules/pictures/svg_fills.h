#pragma once

// What boxes of an SVG picture are filled with: colours, and patterns for waits.

#include "stagecraft/schedules/pictures/event_styles.h"

namespace stagecraft::pictures {

/// A <defs> of the patterns.
[[nodiscard]] std::string wait_patterns();
/// The fill of a box of the k-th of n stages of a rank.
[[nodiscard]] std::string fill_of(EventStyle look, std::size_t k, std::size_t n);

}  // namespace stagecraft::pictures
