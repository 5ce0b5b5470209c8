#include "models/captured/replay/argument_rules.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/jit_type.h>
#include <ATen/native/Pool.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <unordered_map>

namespace stagecraft::captured {
namespace {

using Sizes = StepView::Sizes;

std::string text_of(const Sizes& sizes) { return fmt::format("[{}]", fmt::join(sizes, ",")); }

/// Nothing is wrong with an argument that is absent.
std::string must_be(const StepView& view, std::string_view argument, const Sizes& expected) {
  const auto type = view.tensor(argument);
  if (!type || type->sizes == expected) return "";
  return fmt::format("{} is {}, expected {}", argument, type->text(), text_of(expected));
}

std::string must_be_there(const StepView& view, std::string_view argument) {
  return view.tensor(argument) ? "" : fmt::format("{} is missing", argument);
}

/// The first that is broken.
std::string first_of(std::initializer_list<std::string> broken) {
  for (const std::string& what : broken) {
    if (!what.empty()) return what;
  }
  return "";
}

// ---- Rules for arguments of a kind, in whatever operator

/// More than any tensor has elements. Sums and products of a few such numbers do not fit 64 bits.
constexpr std::int64_t kMostInteger = std::int64_t{1} << 40U;
/// Of kernels, their steps and paddings: products of those of three dimensions fit.
constexpr std::int64_t kMostWindow = std::int64_t{1} << 20U;

constexpr std::array<std::string_view, 4> kAnyInteger{"start", "end", "ignore_index", "padding_idx"};
constexpr std::array<std::string_view, 6> kWindows{"kernel_size", "stride",         "padding",
                                                   "dilation",    "output_padding", "pad"};

/// Kernels compute sizes and places from integers without a check that they fit.
std::string integers_fit(const StepView& view) {
  for (const c10::Argument& argument : view.step().op->schema().arguments()) {
    const std::string& name = argument.name();
    const bool number = argument.type()->kind() == c10::TypeKind::NumberType;
    if (number || std::ranges::find(kAnyInteger, name) != kAnyInteger.end()) continue;
    const bool window = std::ranges::find(kWindows, name) != kWindows.end();
    const std::int64_t most = window ? kMostWindow : kMostInteger;
    for (const std::int64_t value : view.integers(name)) {
      if (-most <= value && value <= most) continue;
      return fmt::format("{} has {}, expected numbers up to {}", name, value, most);
    }
  }
  return "";
}

/// A number in a tensor's place is of no type of its own: LibTorch takes that of the tensors beside it, and
/// some kernels read the number as that type where there are none.
std::string numbers_have_tensors(const StepView& view) {
  std::string number;
  for (std::size_t i = 0; i < view.step().arguments.size(); ++i) {
    if (!view.step().arguments[i].values.empty()) return "";
    if (view.is_number(i)) number = view.step().op->schema().arguments()[i].name();
  }
  return number.empty() ? "" : fmt::format("{} is a number, expected a tensor", number);
}

/// A scale says where a kernel reads its input. It must be about what the sizes say (PyTorch rounds down).
std::string scales_fit(const StepView& view) {
  constexpr std::array<std::string_view, 4> kFromTheLast{"scales_w", "scales_h", "scales_d", "scales"};
  const Sizes out = view.integers("output_size");
  Sizes in = view.integers("input_size");
  if (in.empty()) in = view.sizes("self");
  for (std::size_t i = 0; i < kFromTheLast.size(); ++i) {
    const auto scale = view.number(kFromTheLast[i]);
    const std::size_t back = i % 3 + 1;
    if (!scale || in.size() < back || out.size() < back) continue;
    const auto from = static_cast<double>(in[in.size() - back]),
               to = static_cast<double>(out[out.size() - back]);
    if (std::abs(from * *scale - to) <= 1) continue;
    return fmt::format("{} is {}, but {} becomes {}", kFromTheLast[i], *scale, in[in.size() - back],
                       out[out.size() - back]);
  }
  return "";
}

// ---- Norms

std::string batch_norm(const StepView& view) {
  const Sizes input = view.sizes("input");
  if (input.size() < 2) return "input has less than two dimensions";
  const Sizes channels{input[1]};
  const bool backward = view.position("train").has_value();
  const bool training = view.flag("training") || view.flag("train");
  if (!training && !view.position("running_mean")) return "training is false, and there are no statistics";
  return first_of({must_be(view, "grad_out", input), must_be(view, "weight", channels),
                   must_be(view, "bias", channels), must_be(view, "running_mean", channels),
                   must_be(view, "running_var", channels),
                   training ? "" : must_be_there(view, "running_mean"),
                   training ? "" : must_be_there(view, "running_var"),
                   training ? must_be(view, "save_mean", channels) : "",
                   training ? must_be(view, "save_invstd", channels) : "",
                   training && backward ? must_be_there(view, "save_mean") : "",
                   training && backward ? must_be_there(view, "save_invstd") : ""});
}

/// Statistics have the dimensions of the input, ones in place of those that are normalized.
std::string normalized(const StepView& view) {
  const Sizes input = view.sizes("input");
  const std::size_t length = view.integers("normalized_shape").size();
  if (length > input.size()) return "normalized_shape has more dimensions than input";
  const auto cut = input.end() - static_cast<std::ptrdiff_t>(length);
  Sizes statistics(input.begin(), cut);
  statistics.insert(statistics.end(), length, 1);
  const Sizes weight(cut, input.end());
  return first_of({must_be(view, "grad_out", input), must_be(view, "mean", statistics),
                   must_be(view, "rstd", statistics), must_be(view, "weight", weight),
                   must_be(view, "bias", weight)});
}

std::string group_norm(const StepView& view) {
  const Sizes input = view.sizes("input");
  const std::int64_t samples = view.integers("N")[0], channels = view.integers("C")[0],
                     groups = view.integers("group")[0];
  if (input.size() < 2 || input[0] != samples || input[1] != channels) {
    return fmt::format("input is {}, expected {} samples of {} channels", text_of(input), samples, channels);
  }
  const Sizes statistics{samples, groups};
  return first_of({must_be(view, "grad_out", input), must_be(view, "mean", statistics),
                   must_be(view, "rstd", statistics), must_be(view, "weight", {channels}),
                   must_be(view, "bias", {channels})});
}

/// One norm for each slice along the first dimension, or the last.
std::string weight_norm(const StepView& view) {
  const bool backward = view.position("saved_v").has_value();
  const Sizes v = view.sizes(backward ? "saved_v" : "v");
  const std::int64_t dim = view.integers("dim")[0];
  const auto count = static_cast<std::int64_t>(v.size());
  if (count == 0 || (dim != 0 && dim != count - 1)) return "dim is neither the first nor the last";
  Sizes norms(v.size(), 1);
  norms[static_cast<std::size_t>(dim)] = v[static_cast<std::size_t>(dim)];
  return first_of({must_be(view, "g", norms), must_be(view, "saved_g", norms),
                   must_be(view, "saved_norms", norms), must_be(view, "grad_w", v)});
}

// ---- Attention

/// Heads of the query share those of key and value in groups of one size.
std::string attention(const StepView& view) {
  const Sizes query = view.sizes("query"), key = view.sizes("key"), value = view.sizes("value");
  if (query.size() != 4 || key.size() != 4 || value.size() != 4)
    return "query, key and value have four dimensions";
  if (key[1] < 1 || query[1] % key[1] != 0) {
    return fmt::format("query has {} heads, which is no multiple of {}, those of key", query[1], key[1]);
  }
  const Sizes out{query[0], query[1], query[2], value[3]};
  const Sizes scores{query[0], query[1], query[2], key[2]};
  const auto mask = view.tensor("attn_mask");
  for (std::size_t i = 0; mask && i < mask->sizes.size(); ++i) {
    const bool fits =
        mask->sizes.size() <= 4 &&
        (mask->sizes[i] == 1 || mask->sizes[i] == scores[scores.size() - mask->sizes.size() + i]);
    if (!fits) return fmt::format("attn_mask is {}, and scores are {}", mask->text(), text_of(scores));
  }
  return first_of({must_be(view, "key", {query[0], key[1], key[2], query[3]}),
                   must_be(view, "value", {query[0], key[1], key[2], query[3]}), must_be(view, "out", out),
                   must_be(view, "grad_out", out),
                   must_be(view, "logsumexp", {query[0], query[1], query[2]})});
}

/// LibTorch chooses the kernel, and looks at all but this.
std::string any_attention(const StepView& view) {
  const Sizes key = view.sizes("key"), value = view.sizes("value");
  if (key.size() >= 2 && value.size() >= 2 && key[key.size() - 2] == value[value.size() - 2]) return "";
  return fmt::format("key is {}, and value {}", text_of(key), text_of(value));
}

// ---- Backwards, whose gradient has the sizes of the forward's result

/// Indices say where the gradient is written: they must be those of a forward over as large an input.
template <const char* const& forward>
std::string pooled(const StepView& view) {
  const auto [name, input] = view.maker("indices");
  if (name != forward)
    return fmt::format("indices are made by {}, expected {}", name.empty() ? "no step" : name, forward);
  return first_of({must_be(view, "self", input.sizes), must_be(view, "grad_output", view.sizes("indices"))});
}
constexpr const char* kMaxPool2d = "aten::max_pool2d_with_indices";
constexpr const char* kMaxPool3d = "aten::max_pool3d_with_indices";
constexpr const char* kAdaptiveMaxPool2d = "aten::adaptive_max_pool2d";
constexpr const char* kAdaptiveMaxPool3d = "aten::adaptive_max_pool3d";
constexpr const char* kFractionalMaxPool2d = "aten::fractional_max_pool2d";
constexpr const char* kFractionalMaxPool3d = "aten::fractional_max_pool3d";

/// The same, for as many parts as the step says.
template <const char* const& forward>
std::string pooled_to(const StepView& view) {
  const Sizes parts = view.integers("output_size"), gradient = view.sizes("grad_output");
  const bool fits = !parts.empty() && parts.size() < gradient.size() &&
                    std::equal(parts.rbegin(), parts.rend(), gradient.rbegin());
  return fits ? pooled<forward>(view)
              : fmt::format("output_size is {}, and grad_output {}", text_of(parts), text_of(gradient));
}

/// `size(i, in)` of each of the last `dimensions`, and as many of the others as the input has.
template <class SizeOf>
std::string last_sizes(const StepView& view, std::size_t dimensions, const SizeOf& size) {
  Sizes expected = view.sizes("self");
  if (expected.size() < dimensions) return fmt::format("self has less than {} dimensions", dimensions);
  for (std::size_t i = 0; i < dimensions; ++i) {
    std::int64_t& its = expected[expected.size() - dimensions + i];
    its = size(i, its);
  }
  return must_be(view, "grad_output", expected);
}

template <std::size_t dimensions>
std::string padded(const StepView& view) {
  const Sizes padding = view.integers("padding");  // of the last dimension first
  if (padding.size() != 2 * dimensions) return fmt::format("padding has {} numbers", padding.size());
  return last_sizes(view, dimensions, [&](std::size_t i, std::int64_t in) {
    const std::size_t back = 2 * (dimensions - 1 - i);
    return in + padding[back] + padding[back + 1];
  });
}

template <std::size_t dimensions>
std::string averaged(const StepView& view) {
  const auto window = [&](const char* name, std::size_t i, std::int64_t absent) {
    const Sizes given = view.integers(name);
    return given.empty() ? absent : given.size() == 1 ? given[0] : i < given.size() ? given[i] : 0;
  };
  for (std::size_t i = 0; i < dimensions; ++i) {
    const std::int64_t kernel = window("kernel_size", i, 0), padding = window("padding", i, 0);
    if (kernel < 1 || window("stride", i, kernel) < 1 || padding < 0 || padding > kernel / 2) {
      return "kernel_size, stride and padding make no window";
    }
  }
  return last_sizes(view, dimensions, [&](std::size_t i, std::int64_t in) {
    const std::int64_t kernel = window("kernel_size", i, 0);
    return at::native::pooling_output_shape<std::int64_t>(
        in, kernel, window("padding", i, 0), window("stride", i, kernel), 1, view.flag("ceil_mode"));
  });
}

/// Kernels leave their results unwritten for a mode that they do not know.
std::string sampled(const StepView& view) {
  for (const char* const mode : {"interpolation_mode", "padding_mode"}) {
    const std::int64_t its = view.integers(mode).at(0);
    if (its < 0 || its > 2) return fmt::format("{} is {}, expected 0, 1 or 2", mode, its);
  }
  return "";
}

/// Its gradient has samples and channels of the input, places of the grid.
std::string sampled_backward(const StepView& view) {
  const Sizes input = view.sizes("input"), grid = view.sizes("grid");
  if (input.size() < 4 || grid.size() != input.size())
    return "input and grid have four or five dimensions each";
  Sizes expected{input[0], input[1]};
  expected.insert(expected.end(), grid.begin() + 1, grid.end() - 1);
  return first_of({sampled(view), must_be(view, "grad_output", expected)});
}

/// Versions of LibTorch have other names for it.
std::string gradient_of_distances(const StepView& view, const Sizes& expected) {
  return first_of({must_be(view, "grad", expected), must_be(view, "grad_output", expected)});
}

/// Of every row of x1 to every row of x2.
std::string distances(const StepView& view) {
  const Sizes x1 = view.sizes("x1"), x2 = view.sizes("x2");
  if (x1.size() < 2 || x2.size() < 2 || x1.back() != x2.back()) {
    return fmt::format("x1 is {}, and x2 {}", text_of(x1), text_of(x2));
  }
  const std::size_t count = std::max(x1.size(), x2.size());
  Sizes expected(count, 1);
  for (const Sizes& its : {x1, x2}) {
    for (std::size_t i = 0; i + 2 < its.size(); ++i) {
      std::int64_t& size = expected[count - its.size() + i];
      if (its[i] != 1 && size != 1 && its[i] != size) return "x1 and x2 have other samples";
      if (its[i] != 1) size = its[i];
    }
  }
  expected[count - 2] = x1[x1.size() - 2];
  expected[count - 1] = x2[x2.size() - 2];
  return first_of({gradient_of_distances(view, expected), must_be(view, "cdist", expected)});
}

/// Of each pair of rows.
std::string pair_distances(const StepView& view) {
  const Sizes self = view.sizes("self");
  if (self.size() != 2) return "self has other than two dimensions";
  const Sizes expected{self[0] * (self[0] - 1) / 2};
  return first_of({gradient_of_distances(view, expected), must_be(view, "pdist", expected)});
}

/// Into as many parts as the gradient has.
template <std::size_t dimensions>
std::string adaptive(const StepView& view) {
  const Sizes gradient = view.sizes("grad_output");
  if (gradient.size() < dimensions) return fmt::format("grad_output has less than {} dimensions", dimensions);
  const Sizes self = view.sizes("self");
  if (std::ranges::find(self, 0) != self.end()) return "self has no elements";
  return last_sizes(view, dimensions,
                    [&](std::size_t i, std::int64_t) { return gradient[gradient.size() - dimensions + i]; });
}

std::string unfolded(const StepView& view) {
  Sizes expected = view.integers("input_sizes");
  const std::int64_t size = view.integers("size")[0], step = view.integers("step")[0];
  const auto count = static_cast<std::int64_t>(expected.size());
  std::int64_t dim = view.integers("dim")[0];
  if (dim < 0) dim += count;
  if (dim < 0 || dim >= count) return "dim is none of input_sizes";
  std::int64_t& whole = expected[static_cast<std::size_t>(dim)];
  if (step < 1 || size < 0 || size > whole) return "size and step make no windows";
  whole = (whole - size) / step + 1;
  expected.push_back(size);
  // The kernel repeats what has a size of 1, as torch.istft asks of its windows.
  const Sizes given = view.sizes("grad_in");
  for (std::size_t i = 0; i < given.size() && i + 1 < expected.size(); ++i) {
    if (given[i] == 1 && static_cast<std::int64_t>(i) != dim) expected[i] = 1;
  }
  return must_be(view, "grad_in", expected);
}

/// What a mask selects is as large as its values say: no later step's rules would hold for it.
std::string indexed(const StepView& view) {
  for (const StepView::Type& type : view.tensors("indices")) {
    if (type.dtype == at::kBool) return fmt::format("an index is {}, expected integers", type.text());
  }
  return "";
}

/// One for each sample where the forward does not reduce, else one.
std::string margin_loss(const StepView& view) {
  const Sizes self = view.sizes("self");
  const bool of_samples = view.integers("reduction")[0] == 0 && self.size() == 2;
  return first_of({must_be(view, "grad_output", of_samples ? Sizes{self[0]} : Sizes{}),
                   must_be(view, "is_target", view.sizes("target"))});
}

/// Kernels read the sizes of `dim` unchecked, and of a half of a spectrum as much as the whole is said to have.
std::string fourier(const StepView& view) {
  const Sizes self = view.sizes("self");
  Sizes dims = view.integers("dim");
  if (dims.empty()) return "dim is empty";
  for (const std::int64_t dim : dims) {
    if (dim < 0 || dim >= static_cast<std::int64_t>(self.size()))
      return fmt::format("dim has {}, and self is {}", dim, text_of(self));
    if (self[static_cast<std::size_t>(dim)] < 1) return fmt::format("self is {}", text_of(self));
  }
  const std::int64_t last = dims.back(), normalization = view.integers("normalization").at(0);
  std::ranges::sort(dims);
  if (std::ranges::adjacent_find(dims) != dims.end()) return "dim has a dimension twice";
  if (normalization < 0 || normalization > 2)
    return fmt::format("normalization is {}, expected 0, 1 or 2", normalization);
  if (!view.position("last_dim_size")) return "";
  const std::int64_t size = view.integers("last_dim_size").at(0), half = self[static_cast<std::size_t>(last)];
  return size >= 1 && size / 2 + 1 == half ? "" : fmt::format("last_dim_size is {} for {}", size, half);
}

/// One row of `weight` per index, and one result per bag.
std::string embedding_bag(const StepView& view) {
  const Sizes weight = view.sizes("weight"), indices = view.sizes("indices"), offsets = view.sizes("offsets");
  if (weight.size() != 2 || indices.size() != 1 || offsets.size() != 1 || offsets[0] < 1) {
    return fmt::format("weight is {}, indices {}, offsets {}", text_of(weight), text_of(indices),
                       text_of(offsets));
  }
  const std::int64_t mode = view.integers("mode").at(0);
  if (mode < 0 || mode > 2) return fmt::format("mode is {}, expected 0, 1 or 2", mode);
  if (view.flag("sparse")) return "sparse is true, expected dense gradients";
  return must_be(view, "per_sample_weights", indices);
}

std::string embedding_bag_backward(const StepView& view) {
  constexpr std::int64_t kMean = 1, kMax = 2;
  const Sizes grad = view.sizes("grad"), indices = view.sizes("indices"), offsets = view.sizes("offsets");
  if (grad.size() != 2 || indices.size() != 1 || offsets.size() != 1 || grad[0] < 1) {
    return fmt::format("grad is {}, indices {}, offsets {}", text_of(grad), text_of(indices),
                       text_of(offsets));
  }
  if (view.flag("sparse")) return "sparse is true, expected dense gradients";
  const std::int64_t mode = view.integers("mode").at(0);
  if (mode < 0 || mode > 2) return fmt::format("mode is {}, expected 0, 1 or 2", mode);
  if (mode == kMean && view.tensor("per_sample_weights")) return "per_sample_weights are for sums";
  const Sizes places = view.sizes("offset2bag");
  return first_of(
      {must_be(view, "offsets", {grad[0]}), places == Sizes{0} ? "" : must_be(view, "offset2bag", indices),
       must_be(view, "bag_size", {grad[0]}), mode == kMax ? must_be(view, "maximum_indices", grad) : "",
       must_be(view, "per_sample_weights", indices)});
}

/// Of weights that sums multiply rows by.
std::string embedding_bag_weights(const StepView& view) {
  const Sizes grad = view.sizes("grad"), weight = view.sizes("weight"), indices = view.sizes("indices");
  if (grad.size() != 2 || weight.size() != 2 || grad[1] != weight[1] || indices.size() != 1) {
    return fmt::format("grad is {}, weight {}, indices {}", text_of(grad), text_of(weight), text_of(indices));
  }
  return first_of({must_be(view, "offsets", {grad[0]}),
                   view.sizes("offset2bag") == Sizes{0} ? "" : must_be(view, "offset2bag", indices)});
}

std::string softmax(const StepView& view) { return must_be(view, "grad_output", view.sizes("output")); }

using Rule = std::string (*)(const StepView&);

const std::unordered_map<std::string_view, Rule>& rules() {
  static const auto& all = *new std::unordered_map<std::string_view, Rule>{
      {"aten::native_batch_norm", batch_norm},
      {"aten::native_batch_norm_backward", batch_norm},
      {"aten::_native_batch_norm_legit_functional", batch_norm},
      {"aten::_native_batch_norm_legit.no_stats", batch_norm},
      {"aten::_native_batch_norm_legit_no_training", batch_norm},
      {"aten::native_layer_norm_backward", normalized},
      {"aten::native_group_norm", group_norm},
      {"aten::native_group_norm_backward", group_norm},
      {"aten::_weight_norm_interface", weight_norm},
      {"aten::_weight_norm_interface_backward", weight_norm},
      {"aten::_scaled_dot_product_flash_attention_for_cpu", attention},
      {"aten::_scaled_dot_product_flash_attention_for_cpu_backward", attention},
      {"aten::scaled_dot_product_attention", any_attention},
      {"aten::max_pool2d_with_indices_backward", pooled<kMaxPool2d>},
      {"aten::max_pool3d_with_indices_backward", pooled<kMaxPool3d>},
      {"aten::adaptive_max_pool2d_backward", pooled<kAdaptiveMaxPool2d>},
      {"aten::adaptive_max_pool3d_backward", pooled<kAdaptiveMaxPool3d>},
      {"aten::fractional_max_pool2d_backward", pooled_to<kFractionalMaxPool2d>},
      {"aten::fractional_max_pool3d_backward", pooled_to<kFractionalMaxPool3d>},
      {"aten::grid_sampler_2d", sampled},
      {"aten::grid_sampler_3d", sampled},
      {"aten::grid_sampler_2d_backward", sampled_backward},
      {"aten::grid_sampler_3d_backward", sampled_backward},
      {"aten::_cdist_backward", distances},
      {"aten::_pdist_backward", pair_distances},
      {"aten::replication_pad1d_backward", padded<1>},
      {"aten::reflection_pad3d_backward", padded<3>},
      {"aten::replication_pad3d_backward", padded<3>},
      {"aten::reflection_pad1d_backward", padded<1>},
      {"aten::reflection_pad2d_backward", padded<2>},
      {"aten::replication_pad2d_backward", padded<2>},
      {"aten::avg_pool2d_backward", averaged<2>},
      {"aten::avg_pool3d_backward", averaged<3>},
      {"aten::_adaptive_avg_pool2d_backward", adaptive<2>},
      {"aten::_adaptive_avg_pool3d_backward", adaptive<3>},
      {"aten::unfold_backward", unfolded},
      {"aten::multi_margin_loss_backward", margin_loss},
      {"aten::multilabel_margin_loss_backward", margin_loss},
      {"aten::index.Tensor", indexed},
      {"aten::_fft_r2c", fourier},
      {"aten::_fft_c2r", fourier},
      {"aten::_fft_c2c", fourier},
      {"aten::_embedding_bag", embedding_bag},
      {"aten::_embedding_bag_backward", embedding_bag_backward},
      {"aten::_embedding_bag_per_sample_weights_backward", embedding_bag_weights},
      {"aten::_softmax_backward_data", softmax},
      {"aten::_log_softmax_backward_data", softmax},
  };
  return all;
}

}  // namespace

std::string broken_rule(const StepView& view) {
  const auto found = rules().find(view.step().name);
  std::string broken = first_of({integers_fit(view), numbers_have_tensors(view), scales_fit(view)});
  return broken.empty() && found != rules().end() ? found->second(view) : broken;
}

}  // namespace stagecraft::captured
