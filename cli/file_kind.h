#pragma once

// What a file is, told by its contents: for messages about a wrong one, and so that no output takes the place
// of a file of another kind.

#include "base/json.h"

#include <string>
#include <string_view>

namespace stagecraft::cli {

/// "schedule", "profile", "cluster", "trace", "run config" or "plan", by its keys; empty: none of these.
[[nodiscard]] std::string kind_of(const Json& json);

/// Or with a comment.
[[nodiscard]] bool begins_as_json(char first);

/// The same of a whole file, which may also be a "picture" (SVG), a "web page", a schedule as text or as
/// PyTorch's CSV or a "completion". Throws nothing: what cannot be read as JSON is of no kind.
[[nodiscard]] std::string kind_of_contents(std::string_view contents);

}  // namespace stagecraft::cli
