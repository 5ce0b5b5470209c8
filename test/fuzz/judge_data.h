#pragma once

// What is done with data sets once they are open.

#include "models/data/dataset.h"

#include <string>

namespace stagecraft::fuzz {

/// The first and the last sample of both parts are of the promised shape.
void judge_shapes(const Dataset& data);
/// And their targets are in range. Labels in arrays may be any: what the model cannot use is refused as it reads them.
void judge(const Dataset& data);

[[nodiscard]] std::string compressed(const std::string& bytes);

}  // namespace stagecraft::fuzz
