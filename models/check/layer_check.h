#pragma once

// Tries one layer, or a loss, on two micro-batches of its own, and says what of its contract (layer.h) it breaks. A
// layer with a wrong gradient trains, and nobody notices; so these are the promises that a run relies on and does not
// look at: gradients, what must not be modified, the same bits each time, micro-batches that do not mix.

#include "models/losses/loss.h"
#include "models/model.h"

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace stagecraft {

enum class Aspect : std::uint8_t {
  output,            ///< number, shape and type of what it gives: those of the meta device, and of the run
  input_gradient,    ///< autograd's, or that of differences of the forward
  weight_gradients,  ///< likewise
  in_place,       ///< inputs, gradients and parameters are not modified; buffers only by a training forward
  deterministic,  ///< the same bits on each call, with `kept` or without, done again, after other calls
  micro_batches,  ///< two that are under way at once, their halves apart, give the bits of one after the other
  evaluation,     ///< leaves buffers alone and draws no random numbers
};
template <>
inline constexpr std::array enum_names<Aspect>{"output",    "input_gradient", "weight_gradients",
                                               "in_place",  "deterministic",  "micro_batches",
                                               "evaluation"};

struct Checked {
  enum class Result : std::uint8_t { passed, failed, none };
  Result result =
      Result::none;  ///< none: there is nothing of the kind, or a failure before leaves nothing to try
  std::string said;  ///< what is wrong; or how it was found right: "autograd"
};

struct LayerChecked {
  std::array<Checked, enum_names<Aspect>.size()> aspects;

  [[nodiscard]] Checked& operator[](Aspect aspect) { return aspects[static_cast<std::size_t>(aspect)]; }
  [[nodiscard]] const Checked& operator[](Aspect aspect) const {
    return aspects[static_cast<std::size_t>(aspect)];
  }
  [[nodiscard]] bool passed() const;
  /// A line each: "weight gradients: ...".
  [[nodiscard]] std::vector<std::string> failures() const;
};

/// One micro-batch, in the run's types, on the CPU.
struct LayerInput {
  Bundle inputs;
  FieldTensors fields;
};

struct LayerTrial {
  LayerInput first, second;  ///< different ones, also in size where that may be
  Precision precision{at::kFloat};
  /// Of the layer in its model; used where it cannot be tried with drawn ones.
  Tensors parameters, buffers;
  /// Numbers and weights are drawn, which leaves no gradient zero by chance, and gradients compared in double precision.
  /// Not of captured layers: capture held them against the module they come from.
  bool draws = true;
};

[[nodiscard]] LayerChecked check_layer(const Layer& layer, const LayerTrial& trial);

struct LossTrial {
  at::Tensor output, targets;  ///< as the model gives it; the targets may be undefined
  FieldTensors fields;
  bool draws = true;
};
[[nodiscard]] LayerChecked check_loss(const Loss& loss, const LossTrial& trial);

}  // namespace stagecraft
