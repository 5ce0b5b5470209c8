#pragma once

// What would fit where nothing does, in words: options to give, or what to buy.

#include "partitioner/remedies.h"

#include <string>
#include <vector>

namespace stagecraft::cli {

/// Lines to follow a refusal; empty where nothing was found.
[[nodiscard]] std::string remedies_text(const std::vector<Remedy>& remedies);

}  // namespace stagecraft::cli
