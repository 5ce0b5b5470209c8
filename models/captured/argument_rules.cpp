#include "stagecraft/models/captured/argument_rules.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace stagecraft::captured {
namespace {

using Sizes = std::vector<AffineSize>;

std::string text_of(const Sizes& sizes) {
  std::vector<std::string> texts;
  for (const AffineSize& size : sizes) texts.push_back(size.text());
  return fmt::format("[{}]", fmt::join(texts, ","));
}

std::string must_be(const StepView& view, const std::string& argument, const Sizes& expected) {
  const std::optional<ValueType> type = view.type(argument);
  if (!type || type->sizes == expected) return "";
  return fmt::format("{} is {}, expected {}", argument, type->text(), text_of(expected));
}

/// The first that is broken.
std::string first_of(std::initializer_list<std::string> broken) {
  for (const std::string& what : broken) {
    if (!what.empty()) return what;
  }
  return "";
}

Sizes sizes_of(const StepView& view, const std::string& argument) {
  return view.type(argument).value_or(ValueType{}).sizes;
}

std::string batch_norm(const StepView& view) {
  const Sizes input = sizes_of(view, "input");
  if (input.size() < 2) return "input has less than two dimensions";
  const Sizes channels{input[1]};
  return first_of({must_be(view, "grad_out", input), must_be(view, "weight", channels),
                   must_be(view, "running_mean", channels), must_be(view, "running_var", channels),
                   must_be(view, "save_mean", channels), must_be(view, "save_invstd", channels)});
}

/// Statistics have the dimensions of the input, ones in place of those that are normalized.
std::string normalized(const StepView& view) {
  const Sizes input = sizes_of(view, "input");
  const std::size_t length = view.length("normalized_shape");
  if (length > input.size()) return "normalized_shape has more dimensions than input";
  const auto cut = input.end() - static_cast<std::ptrdiff_t>(length);
  Sizes statistics(input.begin(), cut);
  statistics.insert(statistics.end(), length, AffineSize{0, 1});
  const Sizes weight(cut, input.end());
  return first_of({must_be(view, "grad_out", input), must_be(view, "mean", statistics),
                   must_be(view, "rstd", statistics), must_be(view, "weight", weight),
                   must_be(view, "bias", weight)});
}

std::string group_norm(const StepView& view) {
  const Sizes input = sizes_of(view, "input");
  const Sizes mean = sizes_of(view, "mean");
  if (input.size() < 2 || mean.size() != 2 || mean[0] != input[0]) {
    return "mean does not have the samples of input and groups";
  }
  return first_of(
      {must_be(view, "grad_out", input), must_be(view, "rstd", mean), must_be(view, "weight", {input[1]})});
}

std::string attention(const StepView& view) {
  const Sizes query = sizes_of(view, "query"), key = sizes_of(view, "key"), value = sizes_of(view, "value");
  if (query.size() != 4 || key.size() != 4 || value.size() != 4)
    return "query, key and value have four dimensions";
  const Sizes out{query[0], query[1], query[2], value[3]};
  const Sizes scores{query[0], query[1], query[2], key[2]};
  const std::optional<ValueType> mask = view.type("attn_mask");
  for (std::size_t i = 0; mask && i < mask->sizes.size(); ++i) {
    const bool fits =
        mask->sizes.size() <= 4 && (mask->sizes[i] == AffineSize{0, 1} ||
                                    mask->sizes[i] == scores[scores.size() - mask->sizes.size() + i]);
    if (!fits) return fmt::format("attn_mask is {}, and scores are {}", mask->text(), text_of(scores));
  }
  return first_of({must_be(view, "key", {query[0], key[1], key[2], query[3]}),
                   must_be(view, "value", {query[0], key[1], key[2], value[3]}), must_be(view, "out", out),
                   must_be(view, "grad_out", out),
                   must_be(view, "logsumexp", {query[0], query[1], query[2]})});
}

/// Indices say where the gradient is written: they must be those of a forward over as large an input.
template <const char* const& forward>
std::string pooled(const StepView& view) {
  const auto [name, input] = view.maker("indices");
  if (name != forward)
    return fmt::format("indices are made by {}, expected {}", name.empty() ? "no step" : name, forward);
  return first_of(
      {must_be(view, "self", input.sizes), must_be(view, "grad_output", sizes_of(view, "indices"))});
}
constexpr const char* kMaxPool2d = "aten::max_pool2d_with_indices";
constexpr const char* kMaxPool3d = "aten::max_pool3d_with_indices";
constexpr const char* kAdaptiveMaxPool2d = "aten::adaptive_max_pool2d";

std::string softmax(const StepView& view) { return must_be(view, "grad_output", sizes_of(view, "output")); }

std::string weight_norm(const StepView& view) {
  return first_of({must_be(view, "saved_norms", sizes_of(view, "saved_g")),
                   must_be(view, "grad_w", sizes_of(view, "saved_v"))});
}

using Rule = std::string (*)(const StepView&);

const std::unordered_map<std::string, Rule>& rules() {
  static const std::unordered_map<std::string, Rule> all{
      {"aten::native_batch_norm_backward", batch_norm},
      {"aten::native_layer_norm_backward", normalized},
      {"aten::_fused_rms_norm_backward", normalized},
      {"aten::native_group_norm_backward", group_norm},
      {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", attention},
      {"aten::max_pool2d_with_indices_backward", pooled<kMaxPool2d>},
      {"aten::max_pool3d_with_indices_backward", pooled<kMaxPool3d>},
      {"aten::adaptive_max_pool2d_backward", pooled<kAdaptiveMaxPool2d>},
      {"aten::_softmax_backward_data", softmax},
      {"aten::_log_softmax_backward_data", softmax},
      {"aten::_weight_norm_interface_backward", weight_norm},
  };
  return all;
}

}  // namespace

std::string broken_rule(const StepView& view) {
  const auto found = rules().find(view.step.name);
  return found == rules().end() ? "" : found->second(view);
}

}  // namespace stagecraft::captured
