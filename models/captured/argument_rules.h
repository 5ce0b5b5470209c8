#pragma once

// What steps must promise of their arguments where LibTorch's kernels look at none of it: backwards that read
// saved statistics, or write where saved indices say, read and write outside of their tensors when these do
// not fit. A graph file is anybody's, so it is refused instead.

#include "stagecraft/models/captured/graph.h"

#include <functional>
#include <optional>
#include <string>

namespace stagecraft::captured {

/// A step as rules see it.
struct StepView {
  const Step& step;
  /// Type of a tensor argument by its name; none where it is absent.
  std::function<std::optional<ValueType>(const std::string& argument)> type;
  /// Length of a list of sizes.
  std::function<std::size_t(const std::string& argument)> length;
  /// The step that made the argument, "aten::max_pool2d_with_indices", and the type of its first argument; ""
  /// where no step did.
  std::function<std::pair<std::string, ValueType>(const std::string& argument)> maker;
};

/// Empty where all is well, else what is wrong, as a sentence names it: "save_mean is f32[7], expected [8]".
[[nodiscard]] std::string broken_rule(const StepView& view);

}  // namespace stagecraft::captured
