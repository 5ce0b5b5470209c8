#include "models/captured/operators/ctc_loss.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/_ctc_loss.h>
#include <ATen/ops/_ctc_loss_backward.h>
#include <torch/library.h>

#include <optional>
#include <tuple>
#include <vector>

namespace stagecraft::captured {
namespace {

using at::Tensor;

/// What the kernel reads, with lengths and classes that fit.
struct Transcripts {
  Tensor log_probs, targets;
  std::vector<std::int64_t> input_lengths, target_lengths;
  std::int64_t blank;
  bool zero_infinity;

  Transcripts(const Tensor& its_log_probs, const Tensor& its_targets, const Tensor& its_input_lengths,
              const Tensor& its_target_lengths, std::int64_t its_blank, bool its_zero_infinity)
      : log_probs(its_log_probs), blank(its_blank), zero_infinity(its_zero_infinity) {
    TORCH_CHECK(log_probs.dim() == 3 && log_probs.numel() > 0 &&
                    (log_probs.scalar_type() == at::kFloat || log_probs.scalar_type() == at::kDouble),
                "ctc_loss: expected log_probs of [steps, samples, classes], found ", log_probs.sizes());
    const std::int64_t steps = log_probs.size(0), samples = log_probs.size(1), classes = log_probs.size(2);
    TORCH_CHECK(blank >= 0 && blank < classes, "ctc_loss: blank is ", blank, " of ", classes, " classes");
    TORCH_CHECK(its_targets.dim() == 2 && its_targets.size(0) == samples &&
                    at::isIntegralType(its_targets.scalar_type(), /*includeBool=*/false),
                "ctc_loss: expected targets of [", samples, ", classes per sample], found ",
                its_targets.sizes());
    targets = its_targets.to(at::kLong).contiguous();
    input_lengths = lengths(its_input_lengths, samples, steps, "input_lengths");
    target_lengths = lengths(its_target_lengths, samples, targets.size(1), "target_lengths");
    const Tensor here = targets.cpu();
    const auto* const its = here.const_data_ptr<std::int64_t>();
    for (std::int64_t n = 0; n < samples; ++n) {
      for (std::int64_t i = 0; i < target_lengths[static_cast<std::size_t>(n)]; ++i) {
        const std::int64_t found = its[n * targets.size(1) + i];
        TORCH_CHECK(found >= 0 && found < classes, "ctc_loss: a target is ", found, " of ", classes,
                    " classes");
      }
    }
  }

  static std::vector<std::int64_t> lengths(const Tensor& given, std::int64_t samples, std::int64_t most,
                                           const char* name) {
    TORCH_CHECK(given.dim() == 1 && given.size(0) == samples &&
                    at::isIntegralType(given.scalar_type(), /*includeBool=*/false),
                "ctc_loss: expected ", samples, " ", name, ", found ", given.scalar_type(), given.sizes());
    const Tensor dense = given.to(at::kCPU, at::kLong).contiguous();
    const auto* const first = dense.const_data_ptr<std::int64_t>();
    std::vector<std::int64_t> made(first, first + samples);
    for (const std::int64_t each : made) {
      TORCH_CHECK(each >= 0 && each <= most, "ctc_loss: ", name, " has ", each, ", expected numbers up to ",
                  most);
    }
    return made;
  }

  /// Of each sample, and the table.
  [[nodiscard]] std::tuple<Tensor, Tensor> run() const {
    return at::_ctc_loss(log_probs, targets, input_lengths, target_lengths, blank, zero_infinity);
  }
};

Tensor ctc_loss(const Tensor& log_probs, const Tensor& targets, const Tensor& input_lengths,
                const Tensor& target_lengths, std::int64_t blank, bool zero_infinity) {
  return std::get<0>(
      Transcripts(log_probs, targets, input_lengths, target_lengths, blank, zero_infinity).run());
}

Tensor ctc_loss_backward(const Tensor& grad, const Tensor& log_probs, const Tensor& targets,
                         const Tensor& input_lengths, const Tensor& target_lengths, std::int64_t blank,
                         bool zero_infinity) {
  const Transcripts given(log_probs, targets, input_lengths, target_lengths, blank, zero_infinity);
  TORCH_CHECK(
      grad.dim() == 1 && grad.size(0) == log_probs.size(1) && grad.scalar_type() == log_probs.scalar_type(),
      "ctc_loss: grad is ", grad.scalar_type(), grad.sizes());
  const auto [loss, table] = given.run();
  return at::_ctc_loss_backward(grad, given.log_probs, given.targets, given.input_lengths,
                                given.target_lengths, loss, table, blank, zero_infinity);
}

constexpr const char* kCtcForward =
    "ctc_loss(Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, int blank, "
    "bool zero_infinity) -> Tensor";
constexpr const char* kCtcBackward =
    "ctc_loss_backward(Tensor grad, Tensor log_probs, Tensor targets, Tensor input_lengths, "
    "Tensor target_lengths, int blank, bool zero_infinity) -> Tensor";

}  // namespace

void register_ctc_loss() {
  static const auto& library = *[] {
    auto* made = new torch::Library(torch::Library::FRAGMENT, "stagecraft", std::nullopt, __FILE__, __LINE__);
    made->def(kCtcForward);
    made->def(kCtcBackward);
    for (const c10::DispatchKey key : {c10::DispatchKey::CPU, c10::DispatchKey::CUDA}) {
      made->impl("ctc_loss", torch::dispatch(key, TORCH_FN(ctc_loss)));
      made->impl("ctc_loss_backward", torch::dispatch(key, TORCH_FN(ctc_loss_backward)));
    }
    return made;
  }();
  (void)library;
}

}  // namespace stagecraft::captured
