#pragma once

// Which numbers of the batch a graph looks up in tables: found by following its forward from the inputs and
// fields to the operators that take indices. Nothing in a folder says it, so folders of any age have it.

#include "models/captured/format/graph.h"
#include "models/layers/number_check.h"

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

namespace stagecraft::captured {

/// Names and values that belong to a graph.
struct GraphNames {
  const std::vector<std::string>& parameters;
  const std::vector<std::string>& fields;
  const std::vector<at::Tensor>& constants;
};

/// Those whose indices follow from one input or one field, and constants, alone. `place` is the graph's input.
/// The graph must live as long as `owner`, which the checks share.
[[nodiscard]] std::vector<NumberCheck> index_checks(const std::shared_ptr<const void>& owner,
                                                    const Graph& graph, const GraphNames& names);

/// By parameter: whether its rows are chosen by indices, whatever those follow from.
[[nodiscard]] std::vector<bool> tables_among_parameters(const Graph& graph);

}  // namespace stagecraft::captured
