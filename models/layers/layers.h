#pragma once

// The layers. One function makes each from its settings (models/model_config.h) and the place it stands at;
// it throws InputError, naming the layer and the shape it was given, where they do not fit. Shapes are those
// of one sample: [features], [channels, height, width], [tokens] or [tokens, width].
//
// Beside each: what it keeps of a micro-batch (F->I until backward_input, I->W until backward_weight). Kept
// inputs and outputs share memory with the neighbouring layer's tensors, they are no copies.

#include "stagecraft/base/error.h"
#include "stagecraft/models/layer.h"
#include "stagecraft/models/model_config.h"

#include <string>
#include <vector>

namespace stagecraft {

/// Where a layer is to stand.
struct LayerSite {
  std::string name;
  std::vector<std::int64_t> input;  ///< shape of one sample
  std::string from;                 ///< the layer that gives it, for errors; empty: the data
  at::ScalarType input_dtype = at::kFloat;
  std::int64_t vocabulary = 0;       ///< number of different tokens; 0: no tokens
  InputPlace place;                  ///< in the config, for errors
  double linear_deviation = 0;       ///< of a linear layer's weights; 0: PyTorch's default, uniform by fan-in
  double residual_deviation = 0.02;  ///< of the projection a residual branch ends in

  /// Throws InputError: layer "output" cannot take [4, 8, 8], a sample as "conv" gives it: <expected>
  [[noreturn]] void refuse(const std::string& expected) const;
};

/// y = x W^T + b over the last dimension. Keeps x and, I->W, dy.
[[nodiscard]] LayerPtr make_layer(const LinearSpec& spec, const LayerSite& site);
/// Keeps x and, I->W, dy.
[[nodiscard]] LayerPtr make_layer(const Conv2dSpec& spec, const LayerSite& site);
/// Over [channels, height, width] or [features], with the micro-batch's own statistics while training. Keeps
/// x and two numbers a channel; I->W only the gradients themselves. A training micro-batch that has one
/// number a channel has no variance: InputError.
[[nodiscard]] LayerPtr make_layer(const BatchNormSpec& spec, const LayerSite& site);
/// Keeps its output, which the next layer keeps as its input.
[[nodiscard]] LayerPtr make_layer(const ReluSpec& spec, const LayerSite& site);
/// The exact one (error function). Keeps x.
[[nodiscard]] LayerPtr make_layer(const GeluSpec& spec, const LayerSite& site);
/// Keeps the positions of the maxima.
[[nodiscard]] LayerPtr make_layer(const MaxPoolSpec& spec, const LayerSite& site);
/// A view. Keeps nothing.
[[nodiscard]] LayerPtr make_layer(const FlattenSpec& spec, const LayerSite& site);
/// Keeps a byte an element.
[[nodiscard]] LayerPtr make_layer(const DropoutSpec& spec, const LayerSite& site);
/// Over the last dimension. Keeps x and two numbers a row; I->W only the gradients themselves.
[[nodiscard]] LayerPtr make_layer(const LayerNormSpec& spec, const LayerSite& site);
/// [tokens] -> [tokens, width], always all the positions: a learned vector for each token plus one for each
/// position. Keeps the tokens and, I->W, dy. Has no input gradient.
[[nodiscard]] LayerPtr make_layer(const EmbeddingSpec& spec, const LayerSite& site);
/// x + dropout(project(causal attention(layer norm(x)))), softmax(q k^T / sqrt(width / heads)). Without
/// attention dropout through ATen's flash attention, which keeps no weights; with it they are kept, [heads,
/// tokens, tokens].
[[nodiscard]] LayerPtr make_layer(const AttentionSpec& spec, const LayerSite& site);
/// x + dropout(linear(gelu(linear(layer norm(x))))).
[[nodiscard]] LayerPtr make_layer(const FeedForwardSpec& spec, const LayerSite& site);
/// Each call takes at least the spec's time, its own arithmetic counted in. The output is the input's
/// numbers, cut or repeated to `features`, times a vector of parameters (repeated as well) that starts as
/// ones. Keeps, with parameters, x and, I->W, dy; with factors a number. A dry pass on `meta` does not wait.
/// The times are no part of the fingerprint: as little as a machine's speed do they change what is computed.
[[nodiscard]] LayerPtr make_layer(const DelaySpec& spec, const LayerSite& site);

}  // namespace stagecraft
