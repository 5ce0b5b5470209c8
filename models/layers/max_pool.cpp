#include "models/layers/max_pool.h"

#include "models/layers/functional.h"

#include <ATen/ops/max_pool2d_with_indices.h>
#include <ATen/ops/max_pool2d_with_indices_backward.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <utility>

namespace stagecraft {
namespace {

class MaxPool : public Layer {
 public:
  MaxPool(std::string name, const MaxPoolSpec& spec, std::vector<std::int64_t> shape)
      : Layer(std::move(name), {.type = MaxPoolSpec::kName,
                                .details = fmt::format("kernel {}, stride {}", spec.kernel, spec.stride)}),
        spec_(spec),
        shape_(std::move(shape)) {}

  at::Tensor forward(const Weights&, const at::Tensor& input, const Context&, Kept* kept) const override {
    auto [output, indices] =
        at::max_pool2d_with_indices(input, kernel(), stride(), kPadding, kDilation, false);
    if (kept != nullptr) kept->for_input = {std::move(indices)};
    return output;
  }

  at::Tensor backward_input(const Tensors&, const at::Tensor& grad_output, Kept& kept,
                            bool needs_input_gradient) const override {
    const auto [indices] = functional::take<1>(kept.for_input);
    if (!needs_input_gradient) return {};
    if (!grad_output.is_cpu() && spec_.kernel <= spec_.stride) {
      // No pixel has two windows, so nothing is added up: LibTorch's kernel for GPUs adds all the same, in
      // any order, and is refused where the same bits are asked for.
      return at::zeros({grad_output.size(0), shape_[0], shape_[1] * shape_[2]}, grad_output.options())
          .scatter_(2, indices.flatten(2), grad_output.flatten(2))
          .view({grad_output.size(0), shape_[0], shape_[1], shape_[2]});
    }
    // The kernel reads the input's shape, not its values.
    const at::Tensor input =
        grad_output.new_empty({1}).expand({grad_output.size(0), shape_[0], shape_[1], shape_[2]});
    return at::max_pool2d_with_indices_backward(grad_output, input, kernel(), stride(), kPadding, kDilation,
                                                false, indices);
  }

 private:
  using Pair = std::array<std::int64_t, 2>;
  static constexpr Pair kPadding{0, 0}, kDilation{1, 1};
  Pair kernel() const { return {spec_.kernel, spec_.kernel}; }
  Pair stride() const { return {spec_.stride, spec_.stride}; }

  MaxPoolSpec spec_;
  std::vector<std::int64_t> shape_;  // of one input sample
};

}  // namespace

void describe(Fields& v, MaxPoolSpec& s) {
  v.optional("kernel", s.kernel, "height and width", json::at_least(1));
  v.optional("stride", s.stride, "both ways", json::at_least(1));
}

LayerPtr make_layer(const MaxPoolSpec& spec, const LayerSite& site) {
  if (site.input_dtype == at::kLong || site.input.size() != 3)
    site.refuse("max_pool takes [channels, height, width]");
  if (std::min(site.input[1], site.input[2]) < spec.kernel) {
    site.refuse(fmt::format("pooling {0}x{0} leaves no pixel", spec.kernel));
  }
  return std::make_shared<MaxPool>(site.name, spec, site.input);
}

}  // namespace stagecraft
