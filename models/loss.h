#pragma once

// Losses. The one scaling rule of Stagecraft: each micro-batch is weighted, here, by its share of the
// mini-batch; gradients are summed and never rescaled afterwards. `share` is (samples or tokens of this
// micro-batch) / (of the mini-batch) for a mean reduction and 1 for a sum, so the losses of a mini-batch's
// micro-batches simply add up.

#include "stagecraft/base/describe.h"
#include "stagecraft/models/layer.h"

#include <ATen/core/Tensor.h>

#include <string>

namespace stagecraft {

enum class LossKind : std::uint8_t { cross_entropy, token_cross_entropy, mse };
enum class Reduction : std::uint8_t { mean, sum };

template <>
inline constexpr std::array enum_names<LossKind>{"cross_entropy", "token_cross_entropy", "mse"};
template <>
inline constexpr std::array enum_names<Reduction>{"mean", "sum"};

struct LossConfig {
  LossKind type = LossKind::cross_entropy;
  Reduction reduction = Reduction::mean;
};

template <class V>
void describe(V& v, LossConfig& c) {
  v.required("type", c.type, "cross_entropy: one class a sample; token_cross_entropy: one a token; mse");
  v.optional("reduction", c.reduction, "over the mini-batch's samples (tokens for token_cross_entropy)");
}

/// What a micro-batch contributes to its mini-batch's report: single numbers in double precision, on the
/// output's device, so that nobody waits for the device before they are read.
struct LossValue {
  at::Tensor loss;     ///< weighted by `share`: adds up over micro-batches
  at::Tensor correct;  ///< right argmax predictions, 0 for mse; undefined where they are not counted
};

/// The last thing the last stage does. Not a Layer: it takes targets and yields a number. Profiled as a layer
/// named "loss".
class Loss {
 public:
  explicit Loss(LossConfig config) : config_(config) {}

  /// Loss of `output` (logits [n, classes] or [n, tokens, classes]; mse: any shape) against `targets`. `kept`
  /// (null: no backward) gets what backward needs. `count_correct` only where it is reported (validation).
  [[nodiscard]] LossValue forward(const at::Tensor& output, const at::Tensor& targets, double share,
                                  Kept* kept, bool count_correct) const;
  /// d loss / d output, `share` included, times `scale` (loss scaling), in the output's dtype.
  [[nodiscard]] at::Tensor backward(Kept& kept, double scale = 1) const;
  [[nodiscard]] const LossConfig& config() const { return config_; }

 private:
  LossConfig config_;
};

}  // namespace stagecraft
