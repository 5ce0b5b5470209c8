#pragma once

// Lines between rows of an SVG picture: from whom to whom a value goes past the stages between, and which ranks
// sum a tied weight together. Boxes lie on top, so a line passes behind the ranks that it does not concern.

#include "schedules/pictures/layout.h"
#include "schedules/pictures/svg_writer.h"

namespace stagecraft::pictures {

/// Nothing where rows are too thin for a strip of what is sent.
void write_links(SvgWriter& svg, const Layout& layout, const PanelLayout& panel);

}  // namespace stagecraft::pictures
