#pragma once

#include "schedules/pictures/panel.h"

#include <string>
#include <vector>

namespace stagecraft {

/// A picture: one row per rank, with forwards, backwards, steps and waits in their colours (a shade for each of
/// a rank's stages), micro-batch numbers inside where they fit, what it sends in a strip below, the bytes it
/// holds below that with the peak marked; a time axis, a legend of what occurs, tooltips. Several panels
/// stand below each other on the same axis. Readable from one rank to 64; of more than 128, evenly chosen
/// ones are drawn. Self-contained SVG that also stands inside an HTML page.
[[nodiscard]] std::string to_svg(const std::vector<Panel>& panels);
[[nodiscard]] std::string to_svg(const Timeline& timeline);

}  // namespace stagecraft
