// Layers in bfloat16 and float16, with weights rounded as a run rounds them and gradients summed in float,
// stay as near to double precision as their numbers of bits allow.

#include "models/layers/gradient_accumulator.h"
#include "test/models/layer_cases.h"
#include "test/support/built_in.h"
#include "test/support/catch.h"
#include "test/support/gradient_check.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

using namespace stagecraft;
using namespace stagecraft::test;

namespace {

/// A layer's output, input gradient and parameter gradients.
Tensors everything(const Layer& layer, const Tensors& full, Precision precision, const at::Tensor& input,
                   const at::Tensor& grad_output) {
  Tensors read, buffers;
  const std::vector<ParameterSpec>& specs = layer.parameters();
  Tensors sums;
  for (std::size_t i = 0; i < full.size(); ++i) {
    read.push_back(full[i].to(specs[i].full ? precision.full : precision.compute));
    sums.push_back(full[i].to(precision.full));
  }
  for (const BufferSpec& spec : layer.buffers()) {
    buffers.push_back(at::full(spec.shape, spec.initial, precision.full));
  }
  GradientAccumulator accumulator(sums);
  const bool tokens = !input.is_floating_point();
  Kept kept;
  const at::Tensor output =
      layer.forward({read, buffers}, tokens ? input : input.to(precision.compute), kTrain, &kept);
  CHECK(output.scalar_type() == precision.compute);
  const at::Tensor grad_input =
      layer.backward_input(read, grad_output.to(precision.compute), kept, /*needs_input_gradient=*/!tokens);
  if (!tokens) CHECK(grad_input.scalar_type() == precision.compute);
  if (!full.empty()) layer.backward_weight(kept, accumulator);
  Tensors all{output};
  if (!tokens) all.push_back(grad_input);
  for (const at::Tensor& sum : accumulator.gradients()) {
    CHECK(sum.scalar_type() == precision.full);
    all.push_back(sum);
  }
  return all;
}

double relative_error(const at::Tensor& is, const at::Tensor& should) {
  return (is.to(at::kDouble) - should).norm().item<double>() / (should.norm().item<double>() + 1e-12);
}

void check_precisions(const LayerPtr& layer, const at::Tensor& input) {
  const c10::InferenceMode no_autograd;
  INFO(layer->facts().type);
  const LayerState state = random_state(*layer);
  Tensors parameters;
  for (const at::Tensor& p : state.parameters) parameters.push_back(p.mul(0.3));
  const at::Tensor output =
      layer->forward({parameters, const_cast<Tensors&>(state.buffers)}, input, kTrain, nullptr);  // its shape
  const at::Tensor grad_output = at::randn_like(output);
  const Tensors exact = everything(*layer, parameters, at::kDouble, input, grad_output);
  // Half a unit in the last place is 1/512 and 1/4096; a handful of roundings follow one another.
  for (const auto& [compute, most] : {std::pair{at::kBFloat16, 0.02}, std::pair{at::kHalf, 0.0025}}) {
    const Tensors narrow = everything(*layer, parameters, {at::kFloat, compute}, input, grad_output);
    REQUIRE(narrow.size() == exact.size());
    for (std::size_t i = 0; i < exact.size(); ++i) {
      INFO(c10::toString(compute) << ", tensor " << i);
      CHECK(relative_error(narrow[i], exact[i]) < most);
    }
  }
}

}  // namespace

TEST_CASE("layers of fewer bits stay near double precision", "[precision]") {
  at::manual_seed(4);
  check_precisions(layer_at(LinearSpec{24}, {16}), numbers({32, 16}));
  check_precisions(layer_at(Conv2dSpec{6}, {4, 9, 9}), numbers({5, 4, 9, 9}));
  check_precisions(layer_at(BatchNormSpec{}, {4, 9, 9}), numbers({5, 4, 9, 9}));
  check_precisions(layer_at(BatchNormSpec{}, {12}), numbers({16, 12}));
  check_precisions(layer_at(GeluSpec{}, {20}), numbers({8, 20}));
  check_precisions(layer_at(LayerNormSpec{}, {7, 32}), numbers({4, 7, 32}));
  check_precisions(layer_at(EmbeddingSpec{16, 0.25}, {30}, 11), at::randint(0, 11, {6, 30}, at::kLong));
  check_precisions(layer_at(AttentionSpec{4, 0.1, 0}, {33, 32}), numbers({3, 33, 32}));
  check_precisions(layer_at(AttentionSpec{4, 0.1, 0.1}, {33, 32}), numbers({3, 33, 32}));
  check_precisions(layer_at(FeedForwardSpec{64, 0.1}, {9, 32}), numbers({4, 9, 32}));
}

TEST_CASE("sums of gradients keep what one narrow contribution would round away", "[precision]") {
  const c10::InferenceMode no_autograd;
  GradientAccumulator sums({at::zeros({2, 3}), at::zeros({3})});
  const at::Tensor one = at::ones({2, 1}, at::kBFloat16), row = at::ones({1, 3}, at::kBFloat16);
  for (int i = 0; i < 300; ++i) {  // bfloat16 counts up to 256
    sums.add_product(0, one, row);
    sums.add(1, row.view({3}));
  }
  for (const at::Tensor& sum : sums.gradients()) CHECK(at::equal(sum, at::full_like(sum, 300)));
}
