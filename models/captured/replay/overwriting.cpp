#include "models/captured/replay/overwriting.h"

#include "models/captured/operators/operators.h"

#include <algorithm>

namespace stagecraft::captured {
namespace {

constexpr OverwritingForm kForms[] = {
    {"aten::add.Tensor", "aten::add.out"},
    {"aten::sub.Tensor", "aten::sub.out"},
    {"aten::mul.Tensor", "aten::mul.out"},
    {"aten::div.Tensor", "aten::div.out"},
    {"aten::neg", "aten::neg.out"},
    {"aten::reciprocal", "aten::reciprocal.out"},
    {"aten::pow.Tensor_Scalar", "aten::pow.Tensor_Scalar_out"},
    {"aten::rsqrt", "aten::rsqrt.out"},
    {"aten::sqrt", "aten::sqrt.out"},
    {"aten::exp", "aten::exp.out"},
    {"aten::maximum", "aten::maximum.out"},
    {"aten::minimum", "aten::minimum.out"},
    {"aten::addcmul", "aten::addcmul.out"},
    {"aten::where.self", "aten::where.self_out"},
    {"aten::tanh", "aten::tanh.out"},
    {"aten::tanh_backward", "aten::tanh_backward.grad_input"},
    {"aten::sigmoid", "aten::sigmoid.out"},
    {"aten::sigmoid_backward", "aten::sigmoid_backward.grad_input"},
    {"aten::silu", "aten::silu.out"},
    {"aten::silu_backward", "aten::silu_backward.grad_input"},
    {"aten::gelu", "aten::gelu.out"},
    {"aten::gelu_backward", "aten::gelu_backward.grad_input"},
    {"aten::threshold_backward", "aten::threshold_backward.grad_input"},
    {"aten::hardtanh_backward", "aten::hardtanh_backward.grad_input"},
    {"aten::leaky_relu", "aten::leaky_relu.out"},
    {"aten::leaky_relu_backward", "aten::leaky_relu_backward.grad_input"},
    {"aten::elu", "aten::elu.out"},
    {"aten::elu_backward", "aten::elu_backward.grad_input"},
};

}  // namespace

std::span<const OverwritingForm> overwriting_forms() { return kForms; }

std::optional<c10::OperatorHandle> overwriting_form_of(std::string_view name) {
  const auto form = std::ranges::find(kForms, name, &OverwritingForm::first);
  if (form == std::end(kForms)) return std::nullopt;
  const c10::OperatorName writes = operator_name(form->second);
  return c10::Dispatcher::singleton().findSchemaOrThrow(writes.name.c_str(), writes.overload_name.c_str());
}

std::optional<at::Tensor> overwritable(const torch::jit::Stack& arguments,
                                       const std::vector<std::uint32_t>& dying) {
  const auto free = std::ranges::find_if(dying, [&](std::uint32_t position) {
    const at::Tensor& tensor = arguments[position].toTensor();
    if (tensor.use_count() > 1 || !tensor.has_storage()) return false;
    // Its result would stay a view: view_as_real refuses those that are conjugated.
    if (tensor.is_conj() || tensor.is_neg()) return false;
    // Memory that was lent (from_blob: what a device graph recorded) has no count of its holders.
    return tensor.storage().use_count() == 1 && tensor.storage().resizable();
  });
  if (free == dying.end()) return std::nullopt;
  const at::Tensor& found = arguments[*free].toTensor();
  const auto fits = [&](const c10::IValue& value) {
    if (!value.isTensor()) return true;
    const at::Tensor& other = value.toTensor();
    return !other.defined() || other.dim() == 0 || (other.is_contiguous() && other.sizes() == found.sizes());
  };
  if (!std::ranges::all_of(arguments, fits)) return std::nullopt;
  return found;
}

}  // namespace stagecraft::captured
