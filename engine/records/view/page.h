#pragma once

// The page: one HTML file with all that it needs, for `watch` and for `report --html`. Its files are in
// page/, its charts are uPlot's (third_party/uplot).

#include "base/json.h"

#include <string>

namespace stagecraft {

/// With `document` (document_of, run_view.h) inside. A document that is live asks for "data" beside its own
/// address; otherwise nothing is ever asked. Its Content-Security-Policy allows these scripts and styles
/// alone. Texts of the document are shown as text, whatever they hold.
[[nodiscard]] std::string page_of(const Json& document);

/// As JSON. What is not UTF-8 becomes U+FFFD.
[[nodiscard]] std::string document_text(const Json& document);

}  // namespace stagecraft
