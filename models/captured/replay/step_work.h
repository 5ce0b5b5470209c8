#pragma once

// The work of one step of a graph: multiply-adds of products, convolutions and attention, and bytes read and
// written by all but views.

#include "models/captured/format/graph.h"
#include "models/layers/layer_estimate.h"

#include <cstdint>
#include <vector>

namespace stagecraft::captured {

/// For micro-batches of b samples. A view's work is none.
[[nodiscard]] OperatorWork work_of(const Step& step, const std::vector<Value>& values, std::int64_t b);

/// Whether the step's results share the memory of its first argument.
[[nodiscard]] bool is_view(const Step& step);

/// Of a value of that type.
[[nodiscard]] Bytes bytes_of(const ValueType& type, std::int64_t b);

}  // namespace stagecraft::captured
