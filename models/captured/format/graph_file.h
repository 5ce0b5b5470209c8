#pragma once

// Graph files, read strictly: a graph that was read can be run, and what it reads is there when it does.

#include "models/captured/format/graph.h"

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace stagecraft::captured {

/// Reads `FOLDER/graphs/HASH.json`. Throws InputError with file and JSON pointer: bytes of another hash,
/// unknown keys, operators outside the list (operators.h), arguments that do not fit an operator's schema,
/// values read before they are made or where they are not kept for, types that do not fit, too many of
/// anything.
[[nodiscard]] std::shared_ptr<const Graph> read_graph(const std::string& folder, const std::string& hash);

inline constexpr std::size_t kGraphHashDigits = 16;
/// The name of a graph file with these bytes: the first 16 hex digits of their SHA-256.
[[nodiscard]] std::string graph_hash(std::string_view bytes);

}  // namespace stagecraft::captured
