#pragma once

// What a graph reads of its own state.

#include "models/captured/format/graph.h"

namespace stagecraft::captured {

/// Whether an output of the training forward, or a value that it keeps, follows from a buffer that the same
/// forward changes: a second forward of the micro-batch would make another. Not so for batch norm, which reads
/// its running statistics in evaluation alone.
[[nodiscard]] bool reads_what_it_changes(const Graph& graph);

}  // namespace stagecraft::captured
