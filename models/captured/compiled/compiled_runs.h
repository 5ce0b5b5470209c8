#pragma once

// Code that stagecraft-capture --compile made of stretches of a graph's steps (docs/reference/compiled_code.md):
// shared libraries of AOTInductor in the model folder. A graph whose stretches are replaced by calls of that
// code (compiled_code.h) is a graph as any other, for one size of micro-batch.

#include "base/describe.h"
#include "models/captured/compiled/compiled_for.h"
#include "models/captured/format/graph.h"

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace stagecraft {

/// Whether a run loads a model folder's compiled code.
enum class UseCompiled : std::uint8_t {
  off,      ///< every step is interpreted
  allow,    ///< where the code fits the machine, the threads and the size of the micro-batch
  require,  ///< InputError where it does not
};
template <>
inline constexpr std::array enum_names<UseCompiled>{"off", "allow", "require"};

}  // namespace stagecraft

namespace stagecraft::captured {

/// What a folder has of compiled code, for its graphs.
struct CompiledFolder {
  std::string why_not;   ///< why nothing of it is run; empty: it is
  std::string file;      ///< for messages
  CompiledFor made_for;  ///< all its graphs together
  /// By size of micro-batch: a graph with its compiled stretches.
  using BySize = std::map<std::int64_t, std::shared_ptr<const Graph>>;
  std::map<std::string, BySize> graphs;  ///< by hash
};

/// In which some of the code is run; none: in no run.
[[nodiscard]] std::optional<CompiledFor> runs_for(const CompiledFolder& compiled);
/// What runs compiled, and what does not: one line.
[[nodiscard]] std::string note_on(const CompiledFolder& compiled);

/// Reads and loads `FOLDER/compiled`. Throws InputError with file and JSON pointer for whatever does not follow
/// the format, and for a library of another SHA-256. `graphs`: of the folder, by hash.
[[nodiscard]] std::shared_ptr<const CompiledFolder> read_compiled(
    const std::string& folder, const std::map<std::string, std::shared_ptr<const Graph>>& graphs);

}  // namespace stagecraft::captured
