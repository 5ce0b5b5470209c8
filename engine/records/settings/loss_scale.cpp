#include "engine/records/settings/loss_scale.h"

#include "base/error.h"

#include <fmt/format.h>

#include <algorithm>

namespace stagecraft {

void LossScale::update(bool overflow) {
  if (!overflow) {
    if (fixed()) state_.patience = patience();
    if (fixed() || ++state_.good_steps < config_.loss_scale_window) return;
    // Gradients that are all 0 never overflow: the scale must not outgrow what it is multiplied in.
    state_ = {std::min(state_.scale * 2, kMostLossScale), 0, config_.hysteresis};
    return;
  }
  state_.good_steps = 0;
  if (--state_.patience > 0) return;
  if (fixed()) {
    throw InputError(
        fmt::format("gradients have overflowed float16 in {} steps in a row at the fixed fp16.loss_scale {}: "
                    "nothing is learned any more. Use a smaller one, or 0, which finds one by itself",
                    kFixedPatience, config_.loss_scale));
  }
  if (state_.scale <= config_.min_loss_scale) {
    throw InputError(
        fmt::format("gradients overflow float16 even at fp16.min_loss_scale {}: the run stops here. A lower "
                    "learning rate, a "
                    "longer warm-up or gradient_clipping may help, and bf16 has the range of float32",
                    config_.min_loss_scale));
  }
  state_ = {std::max(config_.min_loss_scale, state_.scale / 2), 0, 1};
}

}  // namespace stagecraft
