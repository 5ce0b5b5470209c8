#include "models/layers/delay.h"

#include "base/ids.h"
#include "models/layers/functional.h"

#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/util/accumulate.h>
#include <fmt/format.h>

#include <cerrno>
#include <cmath>
#include <ctime>
#include <sys/prctl.h>
#include <utility>

namespace stagecraft {
namespace {

/// A moment, and waiting until so long after it. The deadline is absolute, so what was computed meanwhile
/// and a sleep that a signal broke off are counted in.
class Deadline {
 public:
  Deadline() : nanoseconds_(now()) {}

  void wait(Seconds after, DelayWait how) {
    if (after.value <= 0) return;
    nanoseconds_ += static_cast<std::int64_t>(std::ceil(after.value * 1e9));
    if (how == DelayWait::sleep) sleep_until(nanoseconds_ - kLate);
    while (now() < nanoseconds_) {
    }
  }

 private:
  /// A sleeper is woken about so much late, and by a time that is never the same. So the end is not slept.
  static constexpr std::int64_t kLate = 100'000;
  static constexpr std::int64_t kSecond = 1'000'000'000;

  static std::int64_t now() {
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * kSecond + time.tv_nsec;
  }

  static void sleep_until(std::int64_t nanoseconds) {
    prctl(PR_SET_TIMERSLACK, 1);  // of this thread: wake at once, not up to 50 us late to save energy
    const timespec time{nanoseconds / kSecond, nanoseconds % kSecond};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, nullptr) == EINTR) {
    }
  }

  std::int64_t nanoseconds_;
};

/// Rows of `size` numbers: the first of each row of `x`, or `x` over and over.
at::Tensor resized(const at::Tensor& x, std::int64_t size) {
  const std::int64_t has = x.size(1);
  if (size <= has) return x.narrow(1, 0, size);
  return x.repeat({1, (size + has - 1) / has}).narrow(1, 0, size);
}

/// The gradient of what was resized from rows of `size`.
at::Tensor resized_backward(const at::Tensor& grad, std::int64_t size) {
  const std::int64_t has = grad.size(1);
  const std::int64_t times = (has + size - 1) / size;
  const at::Tensor padded = times * size == has ? grad : at::constant_pad_nd(grad, {0, times * size - has});
  return times == 1 ? padded : padded.view({-1, times, size}).sum(1);
}

class Delay : public Layer {
 public:
  Delay(std::string name, DelaySpec spec, std::vector<std::int64_t> shape)
      : Layer(std::move(name), facts_of(spec)),
        spec_(std::move(spec)),
        shape_(std::move(shape)),
        inputs_(c10::multiply_integers(shape_)),
        outputs_(spec_.features > 0 ? spec_.features : inputs_) {}

  at::Tensor forward(const Weights& weights, const at::Tensor& input, const Context& context,
                     Kept* kept) const override {
    Deadline deadline;
    at::Tensor output = input;
    if (spec_.features > 0 || spec_.parameters > 0) {
      const at::Tensor x = input.reshape({input.size(0), inputs_});
      output = resized(x, outputs_);
      if (spec_.parameters > 0) output = output.mul(scale(weights.parameters));
      if (spec_.features == 0) output = output.reshape(input.sizes());
      if (kept != nullptr && spec_.parameters > 0) kept->for_weight = {x};
    }
    if (input.is_meta()) return output;  // a dry pass
    const double factor = factor_of(context);
    if (kept != nullptr && !spec_.factors.empty()) kept->for_input = {at::scalar_tensor(factor, at::kDouble)};
    deadline.wait(spec_.forward * factor, spec_.wait);
    return output;
  }

  at::Tensor backward_input(const Tensors& parameters, const at::Tensor& grad_output, Kept& kept,
                            bool needs_input_gradient) const override {
    Deadline deadline;
    at::Tensor factor;
    if (!kept.for_input.empty()) factor = functional::take<1>(kept.for_input)[0];
    const at::Tensor dy = grad_output.reshape({grad_output.size(0), outputs_});
    at::Tensor dx;
    if (needs_input_gradient) {
      dx = resized_backward(spec_.parameters > 0 ? dy.mul(scale(parameters)) : dy, inputs_);
      std::vector<std::int64_t> shape{dx.size(0)};
      shape.insert(shape.end(), shape_.begin(), shape_.end());
      dx = dx.reshape(shape);
    }
    if (spec_.parameters > 0) kept.for_weight.push_back(dy);
    if (spec_.parameters > 0 && factor.defined()) kept.for_weight.push_back(factor);
    deadline.wait(spec_.backward_input * value_of(factor), spec_.wait);
    return dx;
  }

  void backward_weight(Kept& kept, GradientSink& sink) const override {
    if (spec_.parameters == 0) return Layer::backward_weight(kept, sink);
    Deadline deadline;
    // Held to the end: in a pipeline both lie in slots, so the memory measured here must not go earlier.
    const Tensors held = std::exchange(kept.for_weight, {});
    const double factor = held.size() > 2 ? value_of(held[2]) : 1;
    const at::Tensor products = resized(held[0], outputs_).mul(held[1]);
    sink.add(0, resized_backward(products.sum(0, /*keepdim=*/true), spec_.parameters)[0]);
    deadline.wait(spec_.backward_weight * factor, spec_.wait);
  }

 private:
  static LayerFacts facts_of(const DelaySpec& spec) {
    LayerFacts facts{.type = DelaySpec::kName, .repeats = false};
    if (spec.features > 0) facts.details = fmt::format("features {}", spec.features);
    if (spec.parameters > 0) facts.parameters = {{"scale", {spec.parameters}, {Initial::Kind::ones, 0}}};
    return facts;
  }

  /// One row.
  at::Tensor scale(const Tensors& parameters) const { return resized(parameters[0].unsqueeze(0), outputs_); }

  double factor_of(const Context& context) const {
    if (spec_.factors.empty()) return 1;
    return spec_.factors[context.key.micro_batch % spec_.factors.size()];
  }
  static double value_of(const at::Tensor& factor) {
    return factor.defined() ? *factor.const_data_ptr<double>() : 1;
  }

  DelaySpec spec_;
  std::vector<std::int64_t> shape_;  // of one input sample
  std::int64_t inputs_, outputs_;    // numbers per sample
};

}  // namespace

void describe(Fields& v, DelaySpec& s) {
  // Longer than any wait for another rank may take by default, and short enough for a clock.
  const json::Range an_hour = json::between(0, 3.6e6);
  v.optional("forward_ms", s.forward, "least time of a micro-batch's forward, of whatever size it is",
             an_hour);
  v.optional("backward_input_ms", s.backward_input, "of the input half of its backward", an_hour);
  v.optional("backward_weight_ms", s.backward_weight, "of the weight half of its backward; needs parameters",
             an_hour);
  v.optional("wait", s.wait, "sleep: the processor is free until shortly before the end; spin: it is busy");
  v.optional("features", s.features,
             "numbers per sample of its output, the input's first or over and over; 0: the input's",
             json::between(0, 1e9));
  v.optional("parameters", s.parameters, "numbers that scale the output", json::between(0, 1e9));
  v.optional(
      "factors", s.factors,
      "times of a step's micro-batch k are multiplied by factors[k mod their number]: one slow replica, "
      "or uneven work; empty: by 1");
  for (const double factor : s.factors) {
    v.require(factor >= 0 && factor <= 1e6, "factors",
              fmt::format("expected factors of at least 0 and at most 1e6, found {}", factor));
  }
  v.require(s.parameters > 0 || s.backward_weight.value == 0, "backward_weight_ms",
            "a layer without parameters has no weight half of its backward, so the time would be lost; set "
            "parameters, or add it to backward_input_ms");
}

LayerPtr make_layer(const DelaySpec& spec, const LayerSite& site) {
  if (site.input_dtype == at::kLong)
    site.refuse("delay takes numbers, these are tokens; put an embedding before it");
  return std::make_shared<Delay>(site.name, spec, site.input);
}

}  // namespace stagecraft
