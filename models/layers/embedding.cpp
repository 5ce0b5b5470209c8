#include "models/layers/embedding.h"

#include "models/layers/dropout_masks.h"
#include "models/layers/functional.h"

#include <ATen/OpMathType.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_dense_backward.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <utility>

namespace stagecraft {
namespace {

class Embedding : public Layer {
 public:
  Embedding(const std::string& name, const EmbeddingSpec& spec, std::int64_t vocabulary,
            std::int64_t positions)
      : Layer(name, facts_of(name, spec, vocabulary, positions)),
        hidden_size_(spec.hidden_size),
        vocabulary_(vocabulary),
        positions_(positions),
        dropout_(spec.dropout) {}

  at::Tensor forward(const Weights& weights, const at::Tensor& input, const Context& context,
                     Kept* kept) const override {
    if (input.is_meta()) {  // ATen has no such kernel
      return at::empty({input.size(0), positions_, hidden_size_}, weights.parameters[0].options());
    }
    at::Tensor output = at::embedding(weights.parameters[0], input);
    output.add_(weights.parameters[1]);
    if (kept != nullptr) kept->for_input = {input};
    if (dropout_.applies(context)) {
      at::Tensor mask = dropout_.drop_(output, context.key);
      if (kept != nullptr) kept->for_input.push_back(std::move(mask));
    }
    return output;
  }

  at::Tensor backward_input(const Tensors&, const at::Tensor& grad_output, Kept& kept, bool) const override {
    const bool dropped = kept.for_input.size() > 1;
    kept.for_weight = {kept.for_input[0],
                       dropped ? dropout_.apply(grad_output, kept.for_input[1]) : grad_output};
    kept.for_input.clear();
    return {};
  }

  void backward_weight(Kept& kept, GradientSink& sink) const override {
    auto [tokens, grad_output] = functional::take<2>(kept.for_weight);
    // Many rows may add up in one token's: not in a narrow type.
    grad_output = grad_output.to(at::toOpMathType(grad_output.scalar_type()));
    sink.add(0, at::embedding_dense_backward(grad_output, tokens, vocabulary_, -1, false));
    sink.add(1, grad_output.sum(0));
  }

 private:
  static LayerFacts facts_of(const std::string& name, const EmbeddingSpec& spec, std::int64_t vocabulary,
                             std::int64_t positions) {
    const Initial normal{Initial::Kind::normal, 0.02};  // GPT-2
    const std::int64_t width = spec.hidden_size;
    return {
        .type = EmbeddingSpec::kName,
        .details = fmt::format("dropout {}", spec.dropout),
        .parameters = {{.name = "tokens", .shape = {vocabulary, width}, .initial = normal, .table = true},
                       {.name = "positions", .shape = {positions, width}, .initial = normal, .table = true}},
        .number_checks = {
            {.end = vocabulary, .reader = fmt::format("an embedding of {} rows ({})", vocabulary, name)}}};
  }

  std::int64_t hidden_size_, vocabulary_, positions_;
  Dropout dropout_;
};

}  // namespace

void describe(Fields& v, EmbeddingSpec& s) {
  v.required("width", s.hidden_size, "of the residual stream", json::at_least(1));
  v.optional("dropout", s.dropout, "of the sum", json::from_up_to(0, 1));
}

LayerPtr make_layer(const EmbeddingSpec& spec, const LayerSite& site) {
  if (site.input_dtype != at::kLong || site.input.size() != 1)
    site.refuse("embedding takes tokens, [sequence]");
  return std::make_shared<Embedding>(site.name, spec, site.vocabulary, site.input[0]);
}

}  // namespace stagecraft
