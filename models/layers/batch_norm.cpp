#include "models/layers/batch_norm.h"

#include "models/layers/functional.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <c10/util/accumulate.h>
#include <fmt/format.h>

#include <utility>

namespace stagecraft {
namespace {

class BatchNorm : public Layer {
 public:
  BatchNorm(std::string name, const BatchNormSpec& spec, std::int64_t channels)
      : Layer(std::move(name), facts_of(spec, channels)), spec_(spec), channels_(channels) {}

  at::Tensor forward(const Weights& weights, const at::Tensor& input, const Context& context,
                     Kept* kept) const override {
    if (input.is_meta()) return at::empty_like(input);
    const bool training = context.mode == Mode::train;
    STAGECRAFT_CHECK(!training || input.numel() > channels_, "batch norm of one number per channel");
    std::optional<at::Tensor> mean, variance;  // absent: not updated
    if (!training || context.commit_buffers) {
      mean = weights.buffers[0];
      variance = weights.buffers[1];
    }
    auto [output, batch_mean, batch_invstd] =
        at::native_batch_norm(input, weights.parameters[0], weights.parameters[1], mean, variance, training,
                              spec_.momentum, spec_.epsilon);
    if (kept != nullptr) kept->for_input = {input, std::move(batch_mean), std::move(batch_invstd)};
    return output;
  }

  at::Tensor backward_input(const Tensors& parameters, const at::Tensor& grad_output, Kept& kept,
                            bool needs_input_gradient) const override {
    const auto [input, mean, invstd] = functional::take<3>(kept.for_input);
    // The parameters' gradients are sums the input's needs anyway, and small: made here, they save keeping x
    // and dy.
    auto [dx, dweight, dbias] =
        at::native_batch_norm_backward(grad_output, input, parameters[0], {}, {}, mean, invstd, true,
                                       spec_.epsilon, {needs_input_gradient, true, true});
    kept.for_weight = {std::move(dweight), std::move(dbias)};
    return dx;
  }

  void backward_weight(Kept& kept, GradientSink& sink) const override {
    const auto [dweight, dbias] = functional::take<2>(kept.for_weight);
    sink.add(0, dweight);
    sink.add(1, dbias);
  }

 private:
  static LayerFacts facts_of(const BatchNormSpec& spec, std::int64_t channels) {
    return {
        .type = BatchNormSpec::kName,
        .details = fmt::format("momentum {}, epsilon {}", spec.momentum, spec.epsilon),
        .parameters = {functional::norm_scale("weight", channels), functional::norm_shift("bias", channels)},
        .buffers = {{"running_mean", {channels}, 0}, {"running_var", {channels}, 1}},
        // One number per channel has no variance.
        .least_samples = [channels](const std::vector<std::int64_t>& shape) -> std::int64_t {
          return c10::multiply_integers(shape) == channels ? 2 : 1;
        }};
  }

  BatchNormSpec spec_;
  std::int64_t channels_;
};

}  // namespace

void describe(Fields& v, BatchNormSpec& s) {
  v.optional("momentum", s.momentum, "of the running statistics", json::between(0, 1));
  v.optional("epsilon", s.epsilon, "added to the variance", json::above(0));
}

LayerPtr make_layer(const BatchNormSpec& spec, const LayerSite& site) {
  if (site.input_dtype == at::kLong || (site.input.size() != 1 && site.input.size() != 3)) {
    site.refuse("batch_norm takes [features] or [channels, height, width]");
  }
  return std::make_shared<BatchNorm>(site.name, spec, site.input[0]);
}

}  // namespace stagecraft
