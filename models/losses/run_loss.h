#pragma once

// A loss's two halves as a pipeline calls them. A loss may be anybody's: what it throws names it, and a loss that is
// no single number, terms of another number than its names, or an undefined gradient, is an InternalError.

#include "models/losses/loss.h"

namespace stagecraft {

[[nodiscard]] LossValue run_loss(const Loss& loss, const at::Tensor& output, const LossData& data,
                                 double share, Kept* kept, bool count_correct);
[[nodiscard]] at::Tensor run_loss_backward(const Loss& loss, Kept& kept, double scale = 1);

}  // namespace stagecraft
