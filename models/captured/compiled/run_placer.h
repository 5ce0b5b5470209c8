#pragma once

// Puts calls of compiled code in the place of the steps that they stand for.

#include "base/error.h"
#include "models/captured/compiled/compiled_code.h"
#include "models/captured/compiled/compiled_index.h"
#include "models/captured/format/graph.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>

namespace stagecraft::captured {

/// Of one graph, for micro-batches of b samples. All functions throw InputError, with `file` and the pointer
/// that they are given, for what does not fit the graph.
class RunPlacer {
 public:
  RunPlacer(Graph& graph, std::int64_t b, std::string file) : graph_(graph), b_(b), file_(std::move(file)) {}

  /// Runs of a part come in the order of their steps.
  void place(const IndexRun& run, std::shared_ptr<const CompiledCode> code, const std::string& pointer);
  /// Once all runs of a graph are in place: nothing is read before it is made.
  void finish(const std::string& pointer);

 private:
  /// A part that has runs, as it was before.
  struct Before {
    Steps steps;
    std::set<ValueId> read;  ///< by any of them
    std::size_t next = 0;    ///< the first that is not placed again
  };

  [[nodiscard]] InputPlace at(const std::string& pointer) const { return {file_, pointer}; }
  [[nodiscard]] ValueId id_of(const std::string& name, std::size_t count, const std::string& pointer) const;
  Before& before(Part part);
  [[nodiscard]] std::set<std::size_t> replaced_by(const IndexRun& run, const Before& before,
                                                  const std::string& pointer) const;
  void check_values(const IndexRun& run, const Step& made, const std::set<ValueId>& of_run,
                    const Before& before, const std::string& pointer) const;
  void replace(const IndexRun& run, Step made, const std::string& pointer);
  [[noreturn]] void refuse(const std::string& pointer, Part part, ValueId id) const;

  Graph& graph_;
  std::int64_t b_;
  std::string file_;
  std::map<Part, Before> before_;
};

}  // namespace stagecraft::captured
