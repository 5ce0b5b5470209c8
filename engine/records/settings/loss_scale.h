#pragma once

// Dynamic loss scaling for float16, with DeepSpeed's names and rule: the loss is multiplied by a power of
// two, so that small gradients do not vanish; where a sum of gradients overflows, the step is left out and
// the scale halved; after a window of steps without that it is doubled. All ranks hear of an overflow by the
// same agreement on the gradient's norm, so each keeps the scale by itself.

#include "base/describe.h"

#include <cmath>
#include <cstdint>

namespace stagecraft {

/// A scale that any gradient overflows. Times what a loss multiplies it by, it is a number of float32.
inline constexpr double kMostLossScale = 0x1p100;

struct Fp16Config {
  bool enabled = false;
  double loss_scale = 0;  ///< above 0: fixed
  int initial_scale_power = 16;
  std::int64_t loss_scale_window = 1000;
  int hysteresis = 2;
  double min_loss_scale = 1;
};
template <class V>
void describe(V& v, Fp16Config& c) {
  v.optional("enabled", c.enabled, "activations and what layers read of weights in float16");
  v.optional("loss_scale", c.loss_scale, "a fixed scale; 0: dynamic", json::between(0, kMostLossScale));
  v.optional("initial_scale_power", c.initial_scale_power, "the dynamic scale begins as 2 to this",
             json::between(0, 60));
  v.optional("loss_scale_window", c.loss_scale_window, "steps without an overflow until it is doubled",
             json::at_least(1));
  v.optional("hysteresis", c.hysteresis, "overflows until it is halved, in a window", json::at_least(1));
  v.optional("min_loss_scale", c.min_loss_scale, "an overflow at this scale ends the run",
             json::Range{.min = 0, .max = kMostLossScale, .open_min = true});
}

/// What a checkpoint holds of it.
struct LossScaleState {
  double scale = 1;
  std::int64_t good_steps = 0;  ///< since the last overflow or doubling
  int patience = 1;             ///< overflows until the scale is halved, or, fixed, until the run is given up
};
template <class V>
void describe(V& v, LossScaleState& s) {
  v.required("scale", s.scale, "of the loss", json::above(0));
  v.required("good_steps", s.good_steps, "since the last overflow or doubling", json::at_least(0));
  v.required("patience", s.patience, "overflows until it is halved", json::at_least(1));
}

class LossScale {
 public:
  explicit LossScale(const Fp16Config& config)
      : config_(config),
        state_{fixed() ? config.loss_scale : std::exp2(config.initial_scale_power), 0, patience()} {}

  [[nodiscard]] double value() const { return state_.scale; }
  [[nodiscard]] const LossScaleState& state() const { return state_; }
  void set_state(const LossScaleState& state) { state_ = state; }

  /// After each step, one left out for an overflow included. Throws InputError for one at the least scale,
  /// and at a fixed one for the hundredth in a row.
  void update(bool overflow);

 private:
  [[nodiscard]] bool fixed() const { return config_.loss_scale > 0; }
  [[nodiscard]] int patience() const { return fixed() ? kFixedPatience : config_.hysteresis; }

  static constexpr int kFixedPatience = 100;
  Fp16Config config_;
  LossScaleState state_;
};

}  // namespace stagecraft
