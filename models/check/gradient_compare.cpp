#include "models/check/gradient_compare.h"

#include "base/place_error.h"
#include "models/tensors/libtorch_error.h"
#include "models/tensors/shape_text.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <exception>

namespace stagecraft {
namespace {

struct Tolerance {
  double element;     ///< of autograd's, by the largest element
  double step;        ///< of a difference, on a direction of length 1
  double derivative;  ///< of a difference
};

Tolerance tolerance_of(at::ScalarType dtype) {
  return dtype == at::kDouble ? Tolerance{1e-9, 1e-5, 1e-5} : Tolerance{2e-3, 1e-2, 5e-2};
}

/// Undefined where the scalar does not depend on it as far as autograd sees. Empty: it sees nothing at all.
Tensors by_autograd(const Scalar& scalar, const Tensors& of) {
  const c10::InferenceMode normal(false);
  const c10::AutoGradMode on(true);
  Tensors leaves, copies;
  for (const at::Tensor& tensor : of) {
    leaves.push_back(tensor.detach().clone().requires_grad_(true));
    copies.push_back(leaves.back().clone());  // no leaf: a forward that modifies it is found out elsewhere
  }
  const at::Tensor value = scalar(copies);
  if (!value.requires_grad()) return {};
  value.backward();
  Tensors gradients;
  for (const at::Tensor& leaf : leaves) gradients.push_back(leaf.grad());
  return gradients;
}

double value_of(const Scalar& scalar, Tensors of, std::size_t i, const at::Tensor& direction, double step) {
  for (at::Tensor& tensor : of) tensor = tensor.clone();
  of[i].add_(direction, step);
  return scalar(of).item<double>();
}

/// Along two directions.
bool is_by_differences(const Scalar& scalar, const Tensors& of, std::size_t i, const at::Tensor& ours) {
  const c10::NoGradGuard no_grad;
  const Tolerance tolerance = tolerance_of(of[i].scalar_type());
  for (int k = 0; k < 2; ++k) {
    at::Tensor direction = at::randn_like(of[i]);
    direction.div_(direction.norm().item<double>());
    const double ahead = value_of(scalar, of, i, direction, tolerance.step);
    const double behind = value_of(scalar, of, i, direction, -tolerance.step);
    const double slope = (ahead - behind) / (2 * tolerance.step);
    const double its = ours.defined() ? (ours * direction).sum().item<double>() : 0;
    const double size = ours.defined() ? ours.norm().item<double>() : 0;
    const double usual = size / std::sqrt(static_cast<double>(of[i].numel()));
    const double noise = 1e-3 * tolerance.derivative * (1 + std::abs(ahead));
    if (!(std::abs(slope - its) <= tolerance.derivative * (std::abs(slope) + usual) + noise)) return false;
  }
  return true;
}

/// "" where it is.
std::string why_not(const at::Tensor& ours, const at::Tensor& expected) {
  if (!ours.defined()) {
    return expected.abs().max().item<double>() == 0
               ? ""
               : fmt::format("nothing is given for it, and autograd's largest element is {:.3g}",
                             expected.abs().max().item<double>());
  }
  if (ours.sizes() != expected.sizes()) {
    return fmt::format("it is of {}, expected {}", shape_text(ours.sizes()), shape_text(expected.sizes()));
  }
  const double difference = (ours - expected).abs().max().item<double>();
  const double size = expected.abs().max().item<double>();
  if (difference <= tolerance_of(expected.scalar_type()).element * (1 + size)) return "";
  const at::Tensor ratio = (ours * expected).sum() / (expected * expected).sum();
  return fmt::format(
      "it differs from autograd's by {:.3g}, whose largest element is {:.3g}; it is {:.3g} times that "
      "one at best",
      difference, size, ratio.item<double>());
}

}  // namespace

std::vector<GradientVerdict> compare_gradients(const Scalar& scalar, const Tensors& of, const Tensors& ours) {
  Tensors expected;
  std::string unseen = "autograd sees nothing of the forward";
  try {
    expected = by_autograd(scalar, of);
  } catch (...) {
    unseen = "autograd cannot go through the forward (" +
             thrown_text(without_stack(std::current_exception(), "")) + ")";
  }
  std::vector<GradientVerdict> verdicts;
  const c10::NoGradGuard no_grad;
  for (std::size_t i = 0; i < of.size(); ++i) {
    if (of[i].numel() == 0) {
      verdicts.push_back({true, "autograd"});
      continue;
    }
    std::string why = unseen;
    if (!expected.empty() && expected[i].defined()) {
      why = why_not(ours[i], expected[i]);
      if (why.empty()) {
        verdicts.push_back({true, "autograd"});
        continue;
      }
    } else if (!expected.empty()) {
      why = ours[i].defined() ? "autograd has none" : "nothing is given for it";
    }
    const bool shaped = !ours[i].defined() || ours[i].sizes() == of[i].sizes();
    if (shaped && is_by_differences(scalar, of, i, ours[i])) {
      verdicts.push_back({true, "differences"});
    } else {
      verdicts.push_back({false, why + ", and differences of the forward agree with it no better"});
    }
  }
  return verdicts;
}

}  // namespace stagecraft
