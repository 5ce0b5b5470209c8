#pragma once

// What is done with data sets once they are open.

#include "models/data/dataset.h"

#include <string>

namespace stagecraft::fuzz {

/// The first and the last sample of both parts are of the promised shape, with targets in range.
void judge(const Dataset& data);

[[nodiscard]] std::string compressed(const std::string& bytes);

}  // namespace stagecraft::fuzz
