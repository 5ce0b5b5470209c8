#include "models/losses/run_loss.h"

#include "base/error.h"
#include "models/tensors/libtorch_error.h"
#include "models/tensors/shape_text.h"

#include <fmt/format.h>

namespace stagecraft {
namespace {

std::string forward_text(const at::Tensor& output, const LossData& data) {
  std::string text = fmt::format("the loss, forward of {}", shape_text(output.sizes()));
  if (data.targets.defined()) {
    text += fmt::format(" against targets of {}, {}", shape_text(data.targets.sizes()),
                        c10::toString(data.targets.scalar_type()));
  }
  return text;
}

void require_number(const at::Tensor& value, const char* what) {
  if (!value.defined()) throw InternalError(fmt::format("{} is an undefined tensor", what));
  if (value.dim() == 0) return;
  throw InternalError(fmt::format("{} is of shape {}, expected a single number, of shape []", what,
                                  shape_text(value.sizes())));
}

void require_terms(const Loss& loss, const at::Tensor& terms) {
  const auto count = static_cast<std::int64_t>(loss.terms().size());
  if (!terms.defined() && count == 0) return;
  if (terms.defined() && terms.dim() == 1 && terms.size(0) == count && terms.scalar_type() == at::kDouble)
    return;
  throw InternalError(
      fmt::format("its terms are {}, expected {} numbers in double precision",
                  terms.defined() ? "of shape " + shape_text(terms.sizes()) : "an undefined tensor", count));
}

}  // namespace

LossValue run_loss(const Loss& loss, const at::Tensor& output, const LossData& data, double share, Kept* kept,
                   bool count_correct) {
  return named([&] { return forward_text(output, data); },
               [&] {
                 LossValue value = loss.forward(output, data, share, kept, count_correct);
                 require_number(value.loss, "the value");
                 require_terms(loss, value.terms);
                 if (value.correct.defined()) require_number(value.correct, "the count of right predictions");
                 return value;
               });
}

at::Tensor run_loss_backward(const Loss& loss, Kept& kept, double scale) {
  return named([] { return "the loss, backward"; },
               [&] {
                 at::Tensor gradient = loss.backward(kept, scale);
                 if (!gradient.defined()) throw InternalError("the gradient is an undefined tensor");
                 return gradient;
               });
}

}  // namespace stagecraft
