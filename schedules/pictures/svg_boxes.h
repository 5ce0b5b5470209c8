#pragma once

// The boxes of an SVG picture: what every rank does and sends, when.

#include "schedules/pictures/layout.h"
#include "schedules/pictures/svg_writer.h"

namespace stagecraft::pictures {

/// The patterns that boxes are filled with, for <defs>.
void write_patterns(SvgWriter& svg);
/// What a box of the k-th of n stages of a rank is filled with.
[[nodiscard]] std::string fill_of(Look look, std::size_t k, std::size_t n);

/// All rows of a panel. Where boxes are narrower than can be pointed at they share a path and a stretch of
/// the row has one tooltip; where they are narrower than a pixel or so, columns show shares instead.
void write_boxes(SvgWriter& svg, const Layout& layout, const PanelLayout& panel);

}  // namespace stagecraft::pictures
