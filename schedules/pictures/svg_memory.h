#pragma once

// The memory strips of an SVG picture: under every row the bytes its rank holds.

#include "stagecraft/schedules/pictures/layout.h"
#include "stagecraft/schedules/pictures/svg_writer.h"

namespace stagecraft::pictures {

inline constexpr const char* kHeldFill = "#ccd3df";
inline constexpr const char* kThinHeldFill = "#8b98b0";  ///< of strips too thin for a line on top
inline constexpr const char* kFixedFill = "#aab4c5";
inline constexpr const char* kHeldLine = "#5c6b84";
inline constexpr const char* kPeakMark = "#c0392b";
inline constexpr const char* kCapacityLine = "#c0392b";

/// Whether the panel's capacity lies within the scale; far above it, it is not drawn.
[[nodiscard]] bool shows_capacity(const Layout& layout, const Panel& panel);

/// Curves with their peaks marked, the capacity, the scale of each strip. Nothing without curves.
void write_memory(SvgWriter& svg, const Layout& layout, const PanelLayout& panel);

}  // namespace stagecraft::pictures
