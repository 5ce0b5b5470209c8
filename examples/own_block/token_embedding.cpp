#include "llama.h"
#include <ATen/ATen.h>

namespace llama {
namespace {

using stagecraft::Context, stagecraft::GradientSink, stagecraft::Kept, stagecraft::Layer, stagecraft::Tensors,
    stagecraft::Weights;

class TokenEmbeddingLayer final : public Layer {
 public:
  TokenEmbeddingLayer(const std::string& name, std::int64_t vocabulary, std::int64_t hidden_size)
      : Layer(name, {.type = "token_embedding",
                     .parameters = {{"tokens",
                                     {vocabulary, hidden_size},
                                     {stagecraft::Initial::Kind::normal, 0.02}}}}),
        vocabulary_(vocabulary),
        hidden_size_(hidden_size) {}

  at::Tensor forward(const Weights& weights, const at::Tensor& input, const Context&,
                     Kept* kept) const override {
    if (kept != nullptr) kept->for_weight = {input};
    if (input.is_meta()) {  // shapes are found on the meta device, where ATen has no such kernel
      return at::empty({input.size(0), input.size(1), hidden_size_}, weights.parameters[0].options());
    }
    return at::embedding(weights.parameters[0], input);
  }

  /// Tokens have no gradient.
  at::Tensor backward_input(const Tensors&, const at::Tensor& grad_output, Kept& kept, bool) const override {
    kept.for_weight.push_back(grad_output);
    return {};
  }

  void backward_weight(Kept& kept, GradientSink& sink) const override {
    const auto [tokens, grad_output] = stagecraft::functional::take<2>(kept.for_weight);
    sink.add(0, at::embedding_dense_backward(grad_output, tokens, vocabulary_, -1, false));
  }

 private:
  std::int64_t vocabulary_, hidden_size_;
};

}  // namespace

void describe(stagecraft::Fields& f, TokenEmbedding& s) {
  f.required("width", s.hidden_size, "of the residual stream", stagecraft::json::at_least(1));
}

stagecraft::LayerPtr make(const TokenEmbedding& s, const stagecraft::LayerSite& site) {
  if (site.input_dtype != at::kLong || site.input.size() != 1) site.refuse("token_embedding takes [tokens]");
  return std::make_shared<TokenEmbeddingLayer>(site.name, site.vocabulary, s.hidden_size);
}

}  // namespace llama
