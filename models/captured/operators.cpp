#include "stagecraft/models/captured/operators.h"

#include "stagecraft/base/error.h"

#include <ATen/core/enum_tag.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <unordered_map>
#include <vector>

namespace stagecraft::captured {
namespace {

constexpr Effect kView = Effect::view;

// Composite operators are listed where a capture leaves them whole.
constexpr std::array kOperators{
    // Matrix products
    Operator{"aten::addmm"}, Operator{"aten::mm"}, Operator{"aten::bmm"}, Operator{"aten::baddbmm"},
    Operator{"aten::mv"}, Operator{"aten::dot"},
    // Shapes
    Operator{"aten::t", kView}, Operator{"aten::transpose.int", kView}, Operator{"aten::permute", kView},
    Operator{"aten::view", kView}, Operator{"aten::reshape", kView}, Operator{"aten::_unsafe_view", kView},
    Operator{"aten::expand", kView}, Operator{"aten::expand_as", kView}, Operator{"aten::unsqueeze", kView},
    Operator{"aten::squeeze", kView}, Operator{"aten::squeeze.dim", kView},
    Operator{"aten::squeeze.dims", kView}, Operator{"aten::slice.Tensor", kView},
    Operator{"aten::select.int", kView}, Operator{"aten::diagonal", kView}, Operator{"aten::unfold", kView},
    Operator{"aten::split.Tensor", kView}, Operator{"aten::split_with_sizes", kView},
    Operator{"aten::unbind.int", kView}, Operator{"aten::chunk", kView}, Operator{"aten::detach", kView},
    Operator{"aten::alias", kView}, Operator{"aten::contiguous", kView}, Operator{"aten::_to_copy"},
    Operator{"aten::clone"}, Operator{"aten::copy"}, Operator{"aten::lift_fresh_copy"},
    Operator{"aten::cat"}, Operator{"aten::stack"}, Operator{"aten::repeat"}, Operator{"aten::roll"},
    Operator{"aten::flip"}, Operator{"aten::constant_pad_nd"}, Operator{"aten::reflection_pad1d"},
    Operator{"aten::reflection_pad1d_backward"}, Operator{"aten::reflection_pad2d"},
    Operator{"aten::reflection_pad2d_backward"}, Operator{"aten::replication_pad2d"},
    Operator{"aten::replication_pad2d_backward"}, Operator{"aten::select_backward"},
    Operator{"aten::slice_backward"}, Operator{"aten::diagonal_backward"}, Operator{"aten::unfold_backward"},
    Operator{"aten::select_scatter"}, Operator{"aten::slice_scatter"}, Operator{"aten::im2col"},
    Operator{"aten::col2im"}, Operator{"aten::pixel_shuffle"}, Operator{"aten::pixel_unshuffle"},
    Operator{"aten::native_channel_shuffle"},
    // Arithmetic, element by element
    Operator{"aten::add.Tensor"}, Operator{"aten::add.Scalar"}, Operator{"aten::sub.Tensor"},
    Operator{"aten::sub.Scalar"}, Operator{"aten::rsub.Tensor"}, Operator{"aten::rsub.Scalar"},
    Operator{"aten::mul.Tensor"}, Operator{"aten::mul.Scalar"}, Operator{"aten::div.Tensor"},
    Operator{"aten::div.Scalar"}, Operator{"aten::div.Tensor_mode"}, Operator{"aten::div.Scalar_mode"},
    Operator{"aten::floor_divide"}, Operator{"aten::remainder.Scalar"}, Operator{"aten::remainder.Tensor"},
    Operator{"aten::neg"}, Operator{"aten::abs"}, Operator{"aten::sign"}, Operator{"aten::sgn"},
    Operator{"aten::reciprocal"}, Operator{"aten::floor"}, Operator{"aten::ceil"}, Operator{"aten::round"},
    Operator{"aten::trunc"}, Operator{"aten::pow.Tensor_Scalar"}, Operator{"aten::pow.Tensor_Tensor"},
    Operator{"aten::pow.Scalar"}, Operator{"aten::square"}, Operator{"aten::rsqrt"}, Operator{"aten::sqrt"},
    Operator{"aten::exp"}, Operator{"aten::expm1"}, Operator{"aten::exp2"}, Operator{"aten::log"},
    Operator{"aten::log1p"}, Operator{"aten::log2"}, Operator{"aten::sin"}, Operator{"aten::cos"},
    Operator{"aten::tan"}, Operator{"aten::atan"}, Operator{"aten::atan2"}, Operator{"aten::sinh"},
    Operator{"aten::cosh"}, Operator{"aten::erf"}, Operator{"aten::maximum"}, Operator{"aten::minimum"},
    Operator{"aten::clamp"}, Operator{"aten::clamp.Tensor"}, Operator{"aten::clamp_min"},
    Operator{"aten::clamp_max"}, Operator{"aten::lerp.Scalar"}, Operator{"aten::lerp.Tensor"},
    Operator{"aten::addcmul"}, Operator{"aten::addcdiv"}, Operator{"aten::nan_to_num"},
    // Activations
    Operator{"aten::tanh"}, Operator{"aten::tanh_backward"}, Operator{"aten::sigmoid"},
    Operator{"aten::sigmoid_backward"}, Operator{"aten::silu"}, Operator{"aten::silu_backward"},
    Operator{"aten::gelu"}, Operator{"aten::gelu_backward"}, Operator{"aten::relu"},
    Operator{"aten::threshold"}, Operator{"aten::threshold_backward"}, Operator{"aten::hardtanh"},
    Operator{"aten::hardtanh_backward"}, Operator{"aten::hardswish"}, Operator{"aten::hardswish_backward"},
    Operator{"aten::hardsigmoid"}, Operator{"aten::hardsigmoid_backward"}, Operator{"aten::leaky_relu"},
    Operator{"aten::leaky_relu_backward"}, Operator{"aten::elu"}, Operator{"aten::elu_backward"},
    Operator{"aten::softplus"}, Operator{"aten::softplus_backward"}, Operator{"aten::mish"},
    Operator{"aten::mish_backward"}, Operator{"aten::log_sigmoid_forward"},
    Operator{"aten::log_sigmoid_backward"}, Operator{"aten::glu"}, Operator{"aten::glu_backward"},
    Operator{"aten::_prelu_kernel"}, Operator{"aten::_prelu_kernel_backward"}, Operator{"aten::softshrink"},
    Operator{"aten::softshrink_backward"}, Operator{"aten::hardshrink"},
    Operator{"aten::hardshrink_backward"}, Operator{"aten::_softmax"},
    Operator{"aten::_softmax_backward_data"}, Operator{"aten::_log_softmax"},
    Operator{"aten::_log_softmax_backward_data"}, Operator{"aten::_safe_softmax"},
    // Reductions
    Operator{"aten::mean"}, Operator{"aten::mean.dim"}, Operator{"aten::sum"},
    Operator{"aten::sum.dim_IntList"}, Operator{"aten::prod"}, Operator{"aten::prod.dim_int"},
    Operator{"aten::var.correction"}, Operator{"aten::var.dim"}, Operator{"aten::var_mean.correction"},
    Operator{"aten::std.correction"}, Operator{"aten::linalg_vector_norm"}, Operator{"aten::amax"},
    Operator{"aten::amin"}, Operator{"aten::max.dim"}, Operator{"aten::min.dim"}, Operator{"aten::argmax"},
    Operator{"aten::argmin"}, Operator{"aten::logsumexp"}, Operator{"aten::any"}, Operator{"aten::any.dim"},
    Operator{"aten::all"}, Operator{"aten::all.dim"}, Operator{"aten::cumsum"}, Operator{"aten::cumprod"},
    Operator{"aten::value_selecting_reduction_backward"}, Operator{"aten::sort"}, Operator{"aten::topk"},
    // Comparisons and masks
    Operator{"aten::where.self"}, Operator{"aten::where.ScalarSelf"}, Operator{"aten::where.ScalarOther"},
    Operator{"aten::masked_fill.Scalar"}, Operator{"aten::masked_fill.Tensor"}, Operator{"aten::eq.Tensor"},
    Operator{"aten::eq.Scalar"}, Operator{"aten::ne.Tensor"}, Operator{"aten::ne.Scalar"},
    Operator{"aten::lt.Tensor"}, Operator{"aten::lt.Scalar"}, Operator{"aten::le.Tensor"},
    Operator{"aten::le.Scalar"}, Operator{"aten::gt.Tensor"}, Operator{"aten::gt.Scalar"},
    Operator{"aten::ge.Tensor"}, Operator{"aten::ge.Scalar"}, Operator{"aten::logical_not"},
    Operator{"aten::logical_and"}, Operator{"aten::logical_or"}, Operator{"aten::logical_xor"},
    Operator{"aten::bitwise_and.Tensor"}, Operator{"aten::bitwise_and.Scalar"},
    Operator{"aten::bitwise_or.Tensor"}, Operator{"aten::bitwise_or.Scalar"},
    Operator{"aten::bitwise_xor.Tensor"}, Operator{"aten::bitwise_not"}, Operator{"aten::isnan"},
    Operator{"aten::isinf"}, Operator{"aten::tril"}, Operator{"aten::triu"},
    // New tensors
    Operator{"aten::arange"}, Operator{"aten::arange.start"}, Operator{"aten::arange.start_step"},
    Operator{"aten::full"}, Operator{"aten::ones"}, Operator{"aten::zeros"}, Operator{"aten::eye"},
    Operator{"aten::linspace"}, Operator{"aten::ones_like"}, Operator{"aten::zeros_like"},
    Operator{"aten::full_like"}, Operator{"aten::empty_like"}, Operator{"aten::new_zeros"},
    Operator{"aten::new_ones"}, Operator{"aten::new_empty"}, Operator{"aten::new_full"},
    Operator{"aten::scalar_tensor"}, Operator{"aten::fill.Scalar"}, Operator{"aten::fill.Tensor"},
    // Convolutions, pools and resampling
    Operator{"aten::convolution"}, Operator{"aten::convolution_backward"},
    Operator{"aten::max_pool2d_with_indices"}, Operator{"aten::max_pool2d_with_indices_backward"},
    Operator{"aten::max_pool3d_with_indices"}, Operator{"aten::max_pool3d_with_indices_backward"},
    Operator{"aten::avg_pool2d"}, Operator{"aten::avg_pool2d_backward"}, Operator{"aten::avg_pool3d"},
    Operator{"aten::avg_pool3d_backward"}, Operator{"aten::_adaptive_avg_pool2d"},
    Operator{"aten::_adaptive_avg_pool2d_backward"}, Operator{"aten::_adaptive_avg_pool3d"},
    Operator{"aten::_adaptive_avg_pool3d_backward"}, Operator{"aten::adaptive_max_pool2d"},
    Operator{"aten::adaptive_max_pool2d_backward"}, Operator{"aten::upsample_nearest1d"},
    Operator{"aten::upsample_nearest1d_backward"}, Operator{"aten::upsample_nearest2d"},
    Operator{"aten::upsample_nearest2d.vec"}, Operator{"aten::upsample_nearest2d_backward"},
    Operator{"aten::upsample_linear1d"}, Operator{"aten::upsample_linear1d_backward"},
    Operator{"aten::upsample_bilinear2d"}, Operator{"aten::upsample_bilinear2d.vec"},
    Operator{"aten::upsample_bilinear2d_backward"}, Operator{"aten::upsample_bicubic2d"},
    Operator{"aten::upsample_bicubic2d.vec"}, Operator{"aten::upsample_bicubic2d_backward"},
    // Norms
    Operator{"aten::native_batch_norm", Effect::pure, Condition::no_running_mean},
    Operator{"aten::native_batch_norm_backward"}, Operator{"aten::_native_batch_norm_legit_functional"},
    Operator{"aten::_native_batch_norm_legit.no_stats"},
    Operator{"aten::_native_batch_norm_legit_no_training"}, Operator{"aten::native_layer_norm"},
    Operator{"aten::native_layer_norm_backward"}, Operator{"aten::native_group_norm"},
    Operator{"aten::native_group_norm_backward"}, Operator{"aten::_fused_rms_norm"},
    Operator{"aten::_fused_rms_norm_backward"}, Operator{"aten::_weight_norm_interface"},
    Operator{"aten::_weight_norm_interface_backward"},
    // Attention
    Operator{"aten::_scaled_dot_product_flash_attention_for_cpu", Effect::pure, Condition::no_dropout},
    Operator{"aten::_scaled_dot_product_flash_attention_for_cpu_backward", Effect::pure,
             Condition::no_dropout},
    // Indices
    Operator{"aten::embedding"}, Operator{"aten::embedding_dense_backward"}, Operator{"aten::index.Tensor"},
    Operator{"aten::index_put"}, Operator{"aten::index_select"}, Operator{"aten::index_add"},
    Operator{"aten::gather"}, Operator{"aten::scatter.src"}, Operator{"aten::scatter.value"},
    Operator{"aten::scatter_add"},
};

c10::OperatorName split_name(std::string_view name) {
  const std::size_t dot = name.find('.');
  const std::string overload = dot == std::string_view::npos ? "" : std::string(name.substr(dot + 1));
  return {std::string(name.substr(0, dot)), overload};
}

}  // namespace

std::span<const Operator> operators() { return kOperators; }

const Operator* find_operator(std::string_view name) {
  static const auto& by_name = *[] {
    auto* map = new std::unordered_map<std::string_view, const Operator*>;
    for (const Operator& op : kOperators) map->emplace(op.name, &op);
    return map;
  }();
  const auto found = by_name.find(name);
  return found == by_name.end() ? nullptr : found->second;
}

std::string similar_operator(std::string_view name) {
  std::vector<std::string> names;
  for (const Operator& op : kOperators) names.emplace_back(op.name);
  return did_you_mean(name, names);
}

c10::OperatorHandle handle_of(const Operator& op) {
  const std::optional<c10::OperatorHandle> handle = c10::Dispatcher::singleton().findSchema(split_name(op.name));
  STAGECRAFT_CHECK(handle.has_value(), fmt::format("this LibTorch has no operator {}", op.name));
  STAGECRAFT_CHECK(!handle->schema().is_mutable(), fmt::format("{} writes to its arguments", op.name));
  STAGECRAFT_CHECK(
      !handle->hasTag(at::Tag::nondeterministic_seeded) || op.condition == Condition::no_dropout,
      fmt::format("{} draws random numbers", op.name));
  return *handle;
}

}  // namespace stagecraft::captured
