#include "models/captured/replay/precautions.h"

#include "base/error.h"
#include "models/captured/operators/operators.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <unordered_map>

namespace stagecraft::captured {
namespace {

using Order = Precautions::Order;

struct Named {
  std::string_view argument;
  Order order;
};
using Layouts = std::vector<Named>;

const std::unordered_map<std::string_view, Layouts>& layouts() {
  static const Layouts batch_norm{{"weight", Order::dense},       {"bias", Order::dense},
                                  {"running_mean", Order::dense}, {"running_var", Order::dense},
                                  {"save_mean", Order::dense},    {"save_invstd", Order::dense}};
  static const Layouts group_norm{{"weight", Order::dense}, {"bias", Order::dense},
                                  {"mean", Order::dense},   {"rstd", Order::dense},
                                  {"input", Order::same},   {"grad_out", Order::same}};
  static const Layouts layer_norm{
      {"weight", Order::dense}, {"bias", Order::dense}, {"mean", Order::dense}, {"rstd", Order::dense}};
  static const Layouts weight_norm{{"v", Order::dense},       {"g", Order::dense},
                                   {"grad_w", Order::dense},  {"saved_v", Order::dense},
                                   {"saved_g", Order::dense}, {"saved_norms", Order::dense}};
  static const Layouts attention{{"query", Order::dense_rows},    {"key", Order::dense_rows},
                                 {"value", Order::dense_rows},    {"out", Order::dense_rows},
                                 {"grad_out", Order::dense_rows}, {"attn_mask", Order::dense_rows},
                                 {"logsumexp", Order::dense_rows}};
  static const Layouts bags{{"grad", Order::dense},
                            {"weight", Order::dense},
                            {"indices", Order::dense},
                            {"offsets", Order::dense},
                            {"offset2bag", Order::dense},
                            {"bag_size", Order::dense},
                            {"maximum_indices", Order::dense},
                            {"per_sample_weights", Order::dense}};
  static const auto& all = *new std::unordered_map<std::string_view, Layouts>{
      {"aten::_embedding_bag", bags},
      {"aten::_embedding_bag_backward", bags},
      {"aten::_embedding_bag_per_sample_weights_backward", bags},
      {"aten::native_batch_norm", batch_norm},
      {"aten::native_batch_norm_backward", batch_norm},
      {"aten::_native_batch_norm_legit_functional", batch_norm},
      {"aten::_native_batch_norm_legit.no_stats", batch_norm},
      {"aten::_native_batch_norm_legit_no_training", batch_norm},
      {"aten::native_group_norm", group_norm},
      {"aten::native_group_norm_backward", group_norm},
      {"aten::native_layer_norm", layer_norm},
      {"aten::native_layer_norm_backward", layer_norm},
      {"aten::_weight_norm_interface", weight_norm},
      {"aten::_weight_norm_interface_backward", weight_norm},
      {"aten::_scaled_dot_product_flash_attention_for_cpu", attention},
      {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", attention},
      {"aten::median.dim", {{"self", Order::same}}},
      {"aten::nanmedian.dim", {{"self", Order::same}}},
  };
  return all;
}

/// CUDA's kernels want these besides: some refuse other memory, some read it as if it lay densely.
const std::unordered_map<std::string_view, Layouts>& layouts_on_devices() {
  static const Layouts norm{{"input", Order::dense}, {"grad_out", Order::dense}};
  static const auto& all = *new std::unordered_map<std::string_view, Layouts>{
      {"aten::native_group_norm", norm},
      {"aten::native_group_norm_backward", norm},
      {"aten::native_layer_norm_backward", norm},
      {"aten::native_channel_shuffle", {{"self", Order::dense}}},
      {"aten::channel_shuffle", {{"self", Order::dense}}},
      {"aten::avg_pool2d_backward", {{"grad_output", Order::dense}, {"self", Order::dense}}},
  };
  return all;
}

/// Memory that nobody has written to would go into the results.
constexpr std::pair<std::string_view, const char*> kInPlaceOf[] = {
    {"aten::empty_like", "aten::zeros_like"},
    {"aten::new_empty", "aten::new_zeros"},
};

/// Results of CUDA's kernels lie otherwise than the CPU's, whose memory the graph's views were captured on.
constexpr std::pair<std::string_view, const char*> kOnDevices[] = {
    {"aten::view", "aten::reshape"},
    {"aten::_unsafe_view", "aten::reshape"},
    {"aten::view_as", "aten::reshape_as"},
};

/// What norms in evaluation mode save, and what log_sigmoid keeps for its backward, one kernel makes and the other
/// leaves empty; their backwards read it only where they have made it. A sum of weights without a reduction nobody
/// writes.
void add_nothings(const StepView& view, std::vector<Precautions::Nothing>& nothings) {
  static constexpr std::string_view kBatchNorms[] = {"aten::native_batch_norm",
                                                     "aten::_native_batch_norm_legit_functional",
                                                     "aten::_native_batch_norm_legit_no_training"};
  const std::string_view name = view.step().name;
  if (std::ranges::find(kBatchNorms, name) != std::end(kBatchNorms)) nothings = {{1, false}, {2, false}};
  if (name == "aten::log_sigmoid_forward") nothings = {{1, false}};
  if (name == "aten::_embedding_bag") nothings = {{1, false}, {2, false}, {3, false}};
  if (name == "aten::nll_loss2d_forward" && view.integers("reduction").at(0) == 0) nothings = {{1, true}};
  std::erase_if(nothings,
                [&](const auto& nothing) { return view.step().results[nothing.position] == kNoValue; });
}

/// CPUs take an input of a narrow type with weights and statistics in float32.
bool is_mixed(const StepView& view) {
  static constexpr std::string_view kNorms[] = {"aten::native_layer_norm", "aten::native_layer_norm_backward",
                                                "aten::native_group_norm",
                                                "aten::native_group_norm_backward"};
  if (std::ranges::find(kNorms, std::string_view(view.step().name)) == std::end(kNorms)) return false;
  const auto input = view.tensor("input"), weight = view.tensor("weight");
  return input && weight && input->dtype != weight->dtype;
}

/// They choose their next kernel by numbers that a device has made, or read its error codes.
constexpr std::string_view kWaitOnDevices[] = {"aten::_linalg_eigh",
                                               "aten::_linalg_svd",
                                               "aten::linalg_matrix_exp",
                                               "aten::linalg_pinv.atol_rtol_tensor",
                                               "aten::masked_scatter_backward",
                                               "stagecraft::ctc_loss",
                                               "stagecraft::ctc_loss_backward"};

/// Where nothing reads the code, the model was written with what raises an error (torch.linalg.inv).
std::optional<std::uint32_t> unread_code(const Step& step) {
  static constexpr std::string_view kWithCodes[] = {"aten::linalg_inv_ex", "aten::_linalg_solve_ex",
                                                    "aten::linalg_cholesky_ex", "aten::linalg_lu_factor_ex"};
  if (std::ranges::find(kWithCodes, std::string_view(step.name)) == std::end(kWithCodes)) return std::nullopt;
  const auto last = static_cast<std::uint32_t>(step.results.size()) - 1;
  return step.results[last] == kNoValue ? std::optional(last) : std::nullopt;
}

bool lies(const at::Tensor& tensor, Order order) {
  switch (order) {
    case Order::dense:
      return tensor.is_contiguous();
    case Order::same:
      return tensor.is_non_overlapping_and_dense();
    case Order::dense_rows:
      return tensor.dim() == 0 || tensor.size(-1) <= 1 || tensor.stride(-1) == 1;
  }
  return false;
}

template <class Integer>
std::optional<Integer> first_beyond(const at::Tensor& indices, const Precautions::Indices& range) {
  const at::Tensor dense = indices.contiguous();
  const auto* const first = dense.const_data_ptr<Integer>();
  const auto fits = [&](Integer index) {
    return (range.from <= index && index < range.below) || index == range.ignored;
  };
  const auto* const found = std::find_if_not(first, first + dense.numel(), fits);
  if (found == first + dense.numel()) return std::nullopt;
  return *found;
}

void require_within(const at::Tensor& indices, const Precautions::Indices& range, const Step& step) {
  std::optional<std::int64_t> beyond;
  if (indices.scalar_type() == at::kLong) beyond = first_beyond<std::int64_t>(indices, range);
  if (indices.scalar_type() == at::kInt) beyond = first_beyond<std::int32_t>(indices, range);
  if (range.begins_with_zero && indices.numel() > 0 && indices.flatten()[0].item<std::int64_t>() != 0) {
    throw InputError(step.place,
                     fmt::format("{}: the first of {} is not 0, expected indices from 0 on", step.name,
                                 step.op->schema().arguments()[range.position].name()));
  }
  if (!beyond) return;  // the operator takes no other type
  throw InputError(step.place, fmt::format("{}: {} has {}, expected indices from {} to {}", step.name,
                                           step.op->schema().arguments()[range.position].name(), *beyond,
                                           range.from, range.below - 1));
}

}  // namespace

void Precautions::take(torch::jit::Stack& stack, const Step& step) const {
  if (widens) {
    for (c10::IValue& value : stack) {
      if (value.isTensor() && value.toTensor().defined() && value.toTensor().is_floating_point()) {
        value = value.toTensor().to(at::kFloat);
      }
    }
  }
  for (const Layout& layout : layouts) {
    c10::IValue& value = stack[layout.position];
    if (!value.isTensor() || !value.toTensor().defined() || lies(value.toTensor(), layout.order)) continue;
    value = value.toTensor().contiguous();
  }
  for (const Indices& range : indices) {
    const c10::IValue& value = stack[range.position];
    if (value.isTensor() && value.toTensor().defined()) require_within(value.toTensor(), range, step);
  }
}

void Precautions::settle(torch::jit::Stack& results, const std::vector<ValueType>& types,
                         std::int64_t b) const {
  for (const Nothing& nothing : nothings) {
    const ValueType& type = types[nothing.position];
    const at::Tensor made = results[nothing.position].toTensor();
    const std::vector<std::int64_t> shape = type.at(b);
    if (made.defined() && (nothing.always || made.sizes() != shape)) {
      results[nothing.position] = at::zeros(shape, made.options().dtype(type.dtype));
    }
  }
  if (!widens) return;
  for (std::size_t i = 0; i < results.size() && i < types.size(); ++i) {
    const at::Tensor made = results[i].toTensor();
    if (made.defined() && made.scalar_type() != types[i].dtype) results[i] = made.to(types[i].dtype);
  }
}

void Precautions::require_success(const torch::jit::Stack& results, const Step& step) const {
  if (!code) return;
  const at::Tensor codes = results.at(*code).toTensor().contiguous();
  if (std::all_of(codes.const_data_ptr<int>(), codes.const_data_ptr<int>() + codes.numel(),
                  [](int each) { return each == 0; })) {
    return;
  }
  throw InputError(
      step.place,
      fmt::format("{}: a matrix {}", step.name,
                  step.name == "aten::linalg_cholesky_ex" ? "is not positive-definite" : "is singular"));
}

Precautions precautions_for(const StepView& view, c10::Device device) {
  Precautions found;
  found.op = view.step().op;
  const std::string_view name = view.step().name;
  const auto in_place_of = [&](const auto& pairs) {
    for (const auto& [operation, other] : pairs) {
      if (name == operation) found.op = handle_of(*find_operator(other));
    }
  };
  const auto lay_out = [&](const std::unordered_map<std::string_view, Layouts>& all) {
    const auto its = all.find(name);
    if (its == all.end()) return;
    for (const auto& [argument, order] : its->second) {
      if (const auto position = view.position(argument)) found.layouts.push_back({*position, order});
    }
  };
  in_place_of(kInPlaceOf);
  lay_out(layouts());
  if (!device.is_cpu()) {
    if (std::ranges::find(kWaitOnDevices, name) != std::end(kWaitOnDevices)) {
      throw InputError(
          view.step().place,
          fmt::format("{} makes the host wait for the device, which runs do not: train this model "
                      "on the CPU",
                      name));
    }
    in_place_of(kOnDevices);
    lay_out(layouts_on_devices());
    found.widens = is_mixed(view);
    add_nothings(view, found.nothings);
    return found;
  }
  const auto within = [&](std::string_view argument, std::int64_t below, bool ignores) {
    std::optional<std::int64_t> ignored;
    if (ignores) ignored = view.integers("ignore_index").at(0);
    found.indices.push_back({view.position(argument).value(), below, ignored});
  };
  found.code = unread_code(view.step());
  // LAPACK counts rows from 1.
  if (name == "aten::linalg_lu_solve") {
    const StepView::Sizes rows = view.sizes("LU");
    const std::int64_t count = rows.size() < 2 ? 0 : rows[rows.size() - 2];
    found.indices.push_back({view.position("pivots").value(), count + 1, std::nullopt, 1});
  }
  const StepView::Sizes self = view.sizes("self");
  if (name == "aten::nll_loss_backward") within("target", self.empty() ? 0 : self.back(), true);
  if (name == "aten::nll_loss2d_backward") within("target", self.size() < 2 ? 0 : self[1], true);
  if (name == "aten::embedding_dense_backward") within("indices", view.integers("num_weights").at(0), false);
  if (name == "aten::_embedding_bag_backward" || name == "aten::_embedding_bag_per_sample_weights_backward") {
    const bool of_rows = view.position("num_weights").has_value();
    const StepView::Sizes weight = view.sizes("weight");
    const std::int64_t rows = of_rows ? view.integers("num_weights").at(0) : weight.empty() ? 0 : weight[0];
    const StepView::Sizes bags = view.sizes("grad"), count = view.sizes("indices");
    within("indices", rows, false);
    within("offsets", count.empty() ? 0 : count[0] + 1, false);
    found.indices.back().begins_with_zero = true;
    within("offset2bag", bags.empty() ? 0 : bags[0], false);
    if (of_rows && view.integers("mode").at(0) == 2) within("maximum_indices", rows, false);
  }
  return found;
}

}  // namespace stagecraft::captured
