#pragma once

// The essentials of the page for a terminal: plain text, drawn again and again over itself.

#include "base/json.h"

#include <string>

namespace stagecraft {

/// Of a document (document_of, run_view.h) that lacks nothing: how each run is, its newest figures, the loss
/// as a curve where there is one run, and each rank's time as a bar of letters. Lines have at most `columns`.
[[nodiscard]] std::string screen_text(const Json& document, int columns);

/// "step 400 of 900, 12 min left", of a run's "progress" (RunView).
[[nodiscard]] std::string position_text(const Json& progress);

}  // namespace stagecraft
