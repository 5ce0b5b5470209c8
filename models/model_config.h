#pragma once

// The `model` part of a config: a family with its parameters, or a list of typed layers.

#include "stagecraft/base/describe.h"
#include "stagecraft/base/ids.h"

#include <fmt/format.h>

#include <cstdint>
#include <variant>
#include <vector>

namespace stagecraft {

/// Linear layers with ReLU between; image inputs are flattened.
struct MlpConfig {
  static constexpr const char* kName = "mlp";
  std::vector<std::int64_t> hidden{256, 256};
  double dropout = 0;
};
template <class V>
void describe(V& v, MlpConfig& c) {
  v.optional("hidden", c.hidden, "widths of the hidden layers");
  v.optional("dropout", c.dropout, "after each hidden layer", json::from_up_to(0, 1));
}

/// VGG-style: groups of 3x3 convolution, batch norm, ReLU, each group ending in 2x2 max pooling, then a
/// classifier.
struct ConvnetConfig {
  static constexpr const char* kName = "convnet";
  std::vector<std::vector<std::int64_t>> groups{{32, 32}, {64, 64}};
  std::vector<std::int64_t> classifier{256};
  double dropout = 0;
};
template <class V>
void describe(V& v, ConvnetConfig& c) {
  v.optional("groups", c.groups, "channels of the convolutions of each group; a max pooling ends a group",
             json::non_empty());
  v.optional("classifier", c.classifier, "widths of the hidden linear layers");
  v.optional("dropout", c.dropout, "before each classifier layer", json::from_up_to(0, 1));
}

/// Pre-norm transformer decoder: learned positions, causal attention, GELU. Cut between half blocks
/// (attention | feed-forward).
struct GptConfig {
  static constexpr const char* kName = "gpt";
  std::int64_t blocks = 4;
  std::int64_t width = 128;
  std::int64_t heads = 4;
  std::int64_t feed_forward = 0;  ///< 0: 4 * width
  double dropout = 0;             ///< embeddings and residual branches
  double attention_dropout = 0;   ///< attention weights
};
template <class V>
void describe(V& v, GptConfig& c) {
  v.optional("blocks", c.blocks, "transformer blocks", json::at_least(1));
  v.optional("width", c.width, "of the residual stream", json::at_least(1));
  v.optional("heads", c.heads, "attention heads; divides width", json::at_least(1));
  v.optional("feed_forward", c.feed_forward, "hidden width of the feed-forward part; 0: 4 * width",
             json::at_least(0));
  v.optional("dropout", c.dropout, "of embeddings and residual branches", json::from_up_to(0, 1));
  v.optional("attention_dropout", c.attention_dropout, "of attention weights", json::from_up_to(0, 1));
  v.require(c.heads > 0 && c.width % c.heads == 0, "heads",
            "width " + std::to_string(c.width) + " is not a multiple of heads " + std::to_string(c.heads));
}

// clang-format off
/// The typed layers of a `sequential` model. Sizes that follow from the layer before are not asked for: the dry pass has them.
struct LinearSpec    { static constexpr const char* kName = "linear";     std::int64_t features = 1; bool bias = true; };
struct Conv2dSpec    { static constexpr const char* kName = "conv2d";     std::int64_t channels = 1; std::int64_t kernel = 3;
                       std::int64_t stride = 1; std::int64_t padding = 1; bool bias = true; };
struct BatchNormSpec { static constexpr const char* kName = "batch_norm"; double momentum = 0.1; double epsilon = 1e-5; };
struct ReluSpec      { static constexpr const char* kName = "relu"; };
struct GeluSpec      { static constexpr const char* kName = "gelu"; };
struct MaxPoolSpec   { static constexpr const char* kName = "max_pool";   std::int64_t kernel = 2; std::int64_t stride = 2; };
struct FlattenSpec   { static constexpr const char* kName = "flatten"; };
struct DropoutSpec   { static constexpr const char* kName = "dropout";    double probability = 0.5; };
struct LayerNormSpec { static constexpr const char* kName = "layer_norm"; double epsilon = 1e-5; };
struct EmbeddingSpec { static constexpr const char* kName = "embedding";  std::int64_t width = 1; double dropout = 0; };  ///< tokens + learned positions
struct AttentionSpec { static constexpr const char* kName = "attention";  std::int64_t heads = 1; double dropout = 0;
                       double attention_dropout = 0; };  ///< x + dropout(project(causal attention(norm(x))))
struct FeedForwardSpec { static constexpr const char* kName = "feed_forward"; std::int64_t hidden = 0; double dropout = 0; };  ///< x + dropout(linear(gelu(linear(norm(x)))))
// clang-format on

enum class DelayWait : std::uint8_t { sleep, spin };
template <>
inline constexpr std::array enum_names<DelayWait>{"sleep", "spin"};

/// A layer that takes the time it is told to: for measuring schedules, links and stragglers, on machines with
/// fewer processors than ranks too (docs/delays.md).
struct DelaySpec {
  static constexpr const char* kName = "delay";
  Seconds forward, backward_input, backward_weight;
  DelayWait wait = DelayWait::sleep;
  std::int64_t features = 0;  ///< 0: as many as come in, in their shape
  std::int64_t parameters = 0;
  std::vector<double> factors;
};

template <class V>
void describe(V& v, LinearSpec& s) {
  v.required("features", s.features, "outputs", json::at_least(1));
  v.optional("bias", s.bias, "add a bias");
}
template <class V>
void describe(V& v, Conv2dSpec& s) {
  v.required("channels", s.channels, "output channels", json::at_least(1));
  v.optional("kernel", s.kernel, "height and width", json::at_least(1));
  v.optional("stride", s.stride, "both ways", json::at_least(1));
  v.optional("padding", s.padding, "on every side", json::at_least(0));
  v.optional("bias", s.bias, "add a bias");
}
template <class V>
void describe(V& v, BatchNormSpec& s) {
  v.optional("momentum", s.momentum, "of the running statistics", json::between(0, 1));
  v.optional("epsilon", s.epsilon, "added to the variance", json::above(0));
}
template <class V>
void describe(V&, ReluSpec&) {}
template <class V>
void describe(V&, GeluSpec&) {}
template <class V>
void describe(V& v, MaxPoolSpec& s) {
  v.optional("kernel", s.kernel, "height and width", json::at_least(1));
  v.optional("stride", s.stride, "both ways", json::at_least(1));
}
template <class V>
void describe(V&, FlattenSpec&) {}
template <class V>
void describe(V& v, DropoutSpec& s) {
  v.optional("probability", s.probability, "of zeroing an element", json::from_up_to(0, 1));
}
template <class V>
void describe(V& v, LayerNormSpec& s) {
  v.optional("epsilon", s.epsilon, "added to the variance", json::above(0));
}
template <class V>
void describe(V& v, EmbeddingSpec& s) {
  v.required("width", s.width, "of the residual stream", json::at_least(1));
  v.optional("dropout", s.dropout, "of the sum", json::from_up_to(0, 1));
}
template <class V>
void describe(V& v, AttentionSpec& s) {
  v.required("heads", s.heads, "divides the width", json::at_least(1));
  v.optional("dropout", s.dropout, "of the branch", json::from_up_to(0, 1));
  v.optional("attention_dropout", s.attention_dropout, "of attention weights", json::from_up_to(0, 1));
}
template <class V>
void describe(V& v, FeedForwardSpec& s) {
  v.optional("hidden", s.hidden, "0: 4 * width", json::at_least(0));
  v.optional("dropout", s.dropout, "of the branch", json::from_up_to(0, 1));
}
template <class V>
void describe(V& v, DelaySpec& s) {
  // Longer than any wait for another rank may take by default, and short enough for a clock.
  const json::Range an_hour = json::between(0, 3.6e6);
  v.optional("forward_ms", s.forward, "least time of a micro-batch's forward, of whatever size it is",
             an_hour);
  v.optional("backward_input_ms", s.backward_input, "of the input half of its backward", an_hour);
  v.optional("backward_weight_ms", s.backward_weight, "of the weight half of its backward; needs parameters",
             an_hour);
  v.optional("wait", s.wait, "sleep: the processor is free meanwhile; spin: it is busy");
  v.optional("features", s.features,
             "numbers a sample of its output, the input's first or over and over; 0: the input's",
             json::between(0, 1e9));
  v.optional("parameters", s.parameters, "numbers that scale the output", json::between(0, 1e9));
  v.optional(
      "factors", s.factors,
      "times of a step's micro-batch k are multiplied by factors[k mod their number]: one slow replica, "
      "or uneven work; empty: by 1");
  for (const double factor : s.factors) {
    v.require(factor >= 0 && factor <= 1e6, "factors",
              fmt::format("expected factors of at least 0 and at most 1e6, found {}", factor));
  }
  v.require(s.parameters > 0 || s.backward_weight.value == 0, "backward_weight_ms",
            "a layer without parameters has no weight half of its backward, so the time would be lost; set "
            "parameters, or add it to backward_input_ms");
}

using LayerSpecVariant =
    std::variant<LinearSpec, Conv2dSpec, BatchNormSpec, ReluSpec, GeluSpec, MaxPoolSpec, FlattenSpec,
                 DropoutSpec, LayerNormSpec, EmbeddingSpec, AttentionSpec, FeedForwardSpec, DelaySpec>;
struct LayerSpec {
  LayerSpecVariant layer;
  std::string name;  ///< empty: type and index
};
template <class V>
void describe(V& v, LayerSpec& s) {
  v.alternatives("type", s.layer, "kind of layer");
  v.optional("name", s.name, "in tables and checkpoints; default: type and index");
}

/// An explicit list of layers.
struct SequentialConfig {
  static constexpr const char* kName = "sequential";
  std::vector<LayerSpec> layers;
};
template <class V>
void describe(V& v, SequentialConfig& c) {
  v.required("layers", c.layers, "in order", json::non_empty());
}

struct ModelConfig {
  std::variant<MlpConfig, ConvnetConfig, GptConfig, SequentialConfig> family;
};
template <class V>
void describe(V& v, ModelConfig& c) {
  v.alternatives("family", c.family, "mlp, convnet, gpt, or sequential: a list of layers");
}

}  // namespace stagecraft
