#include "engine/loss_scale.h"

#include "schedules/base/error.h"

#include <fmt/format.h>

#include <algorithm>

namespace stagecraft {

void LossScale::update(bool overflow) {
  if (!overflow) {
    if (config_.loss_scale > 0 || ++state_.good_steps < config_.loss_scale_window) return;
    state_ = {state_.scale * 2, 0, config_.hysteresis};
    return;
  }
  state_.good_steps = 0;
  if (config_.loss_scale > 0) return;  // the step is left out, the scale stays
  if (--state_.patience > 0) return;
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
