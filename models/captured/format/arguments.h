#pragma once

// One argument of a step, read against the type that the operator's schema has for it.

#include "base/json.h"
#include "models/captured/format/graph.h"

#include <ATen/core/function_schema.h>

#include <functional>
#include <string>

namespace stagecraft::captured {

/// Finds a value by its name. Throws InputError with the place where there is none, or none that can be read
/// there.
using FindValue = std::function<ValueId(const std::string& name, const InputPlace& place)>;

/// A Python number where an operator takes a tensor: it does not decide the result's type.
[[nodiscard]] at::Tensor wrapped_number(const c10::Scalar& number);

/// Throws InputError with `place` for what the schema does not take.
[[nodiscard]] Argument read_argument(const Json& json, const InputPlace& place, const c10::Argument& schema,
                                     const FindValue& find);

}  // namespace stagecraft::captured
