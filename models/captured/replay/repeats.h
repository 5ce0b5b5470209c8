#pragma once

// What of a captured model LibTorch refuses on GPUs where a run asks for the same bits every time
// (cuda.deterministic): better said when the model is opened than by a kernel in the middle of a step.

#include "models/captured/format/graph.h"
#include "models/layers/layer.h"
#include "models/losses/loss.h"

#include <string>
#include <vector>

namespace stagecraft::captured {

/// A layer or loss that does what graphs say.
class OfGraphs {
 public:
  OfGraphs() = default;
  OfGraphs(const OfGraphs&) = default;
  OfGraphs& operator=(const OfGraphs&) = default;
  virtual ~OfGraphs() = default;
  [[nodiscard]] virtual std::vector<const Graph*> graphs() const = 0;
};

/// The first step that is refused (Operator::repeats) and where it stands: "aten::median.dim in its forward". ""
/// where there is none; of layers and losses that are not of graphs nothing is known.
[[nodiscard]] std::string refused_step(const Layer& layer);
[[nodiscard]] std::string refused_step(const Loss& loss);

}  // namespace stagecraft::captured
