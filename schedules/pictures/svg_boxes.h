#pragma once

// The boxes of an SVG picture: what every rank does and sends, when.

#include "schedules/pictures/layout.h"
#include "schedules/pictures/svg_writer.h"

namespace stagecraft::pictures {

/// All rows of a panel. Where boxes are narrower than can be pointed at they share a path and a stretch of
/// the row has one tooltip; where they are narrower than a pixel or so, columns show shares instead.
void write_boxes(SvgWriter& svg, const Layout& layout, const PanelLayout& panel);

}  // namespace stagecraft::pictures
