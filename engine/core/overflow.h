#pragma once

// Steps whose gradient is not finite: what a run does about them, and how it says so. A step is made by all
// stages or by none where the ranks agree on the gradient's norm; where they do not, as in asynchronous
// programs, each stage looks at its own gradients before its own update.

#include "base/error.h"
#include "base/ids.h"

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace stagecraft {

struct Model;

/// Numbers that are not finite were found, and nothing that lasts was made from them.
class NotFiniteError : public InputError {
 public:
  NotFiniteError(std::int64_t step, const std::string& what, bool skip_helps)
      : InputError(fmt::format("step {}: {}", step + 1, what)), step_(step), skip_helps_(skip_helps) {}
  [[nodiscard]] std::int64_t step() const { return step_; }  ///< from 0; messages count from 1
  /// OnOverflow::skip would have left the step out.
  [[nodiscard]] bool skip_helps() const { return skip_helps_; }

 private:
  std::int64_t step_;
  bool skip_helps_;
};

/// So many skipped steps in a row end the run: nothing is learned any more.
inline constexpr int kMostSkipsInARow = 100;

/// Names step (from 0), stage, layer and tensor. `parameter` is the tensor's position among all parameters of
/// the model; `norm` is its gradient's, by any measure; finite where only the norm over all parameters is
/// not. `stage_layers[s]` = [first, last) of stage s.
[[nodiscard]] NotFiniteError gradient_not_finite(const Model& model,
                                                 const std::vector<std::pair<int, int>>& stage_layers,
                                                 std::int64_t step, std::size_t parameter, double norm);

/// `step` (from 0) was the kMostSkipsInARow-th in a row that `stage` left out.
[[nodiscard]] NotFiniteError too_many_skips(std::int64_t step, StageId stage);

/// "layer block3.attention (stage 1)", for messages.
[[nodiscard]] std::string layer_words(const Model& model,
                                      const std::vector<std::pair<int, int>>& stage_layers, int layer);

}  // namespace stagecraft
