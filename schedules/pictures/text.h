#pragma once

#include "schedules/pictures/panel.h"
#include "schedules/program/program_text.h"

#include <cstddef>
#include <string>

namespace stagecraft {

struct TextOptions {
  int columns = 100;           ///< width of a line at most; below 20 counts as 20
  std::size_t most_rows = 64;  ///< of more ranks, evenly chosen ones are drawn
  bool colors = false;         ///< xterm's 256
};

/// The same picture as text, a line per rank: a box begins with its letter and micro-batch where they fit
/// ("F12--B3=====", in colour the number alone; lower case, or darker, for every second of a rank's stages),
/// waits are dots, and at the right, where there is room, the rank's busy share and peak bytes. A time axis
/// and a legend below. Without colours, plain ASCII but for the axis' unit.
[[nodiscard]] std::string to_text(const Panel& panel, const TextOptions& options);

}  // namespace stagecraft
