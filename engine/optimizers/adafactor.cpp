#include "engine/optimizers/adafactor.h"

#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/mul.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace stagecraft {
namespace {

double norm_of(const at::Tensor& tensor) { return at::linalg_vector_norm(tensor, 2).item<double>(); }

double root(double value) { return std::pow(value, 0.5); }  // Python's; std::sqrt may round otherwise

/// The mean of the squares over a dimension, without a tensor of the squares.
at::Tensor mean_square(const at::Tensor& tensor, std::int64_t dimension) {
  return at::linalg_vector_norm(tensor, 2, {{dimension}}, /*keepdim=*/true)
      .square_()
      .div_(tensor.size(dimension));
}

class Adafactor final : public Optimizer {
 public:
  explicit Adafactor(const AdafactorConfig& config) : config_(config) {}

  double learning_rate() const override { return config_.lr; }
  double weight_decay(const ParameterSite& /*parameter*/) const override { return config_.weight_decay; }
  std::vector<StateSpec> state_of(const ParameterSite& parameter) const override {
    std::vector<std::int64_t> row = parameter.shape, column = parameter.shape;
    const std::size_t axes = row.size();
    if (axes < 2) return {{"variance", row}};
    row[axes - 1] = 1;
    column[axes - 2] = 1;
    return {{"row_var", row}, {"col_var", column}};
  }
  std::int64_t workspace_bytes(const std::vector<ParameterSite>& together,
                               std::int64_t element_bytes) const override {
    std::int64_t most = 0;
    for (const ParameterSite& parameter : together) {
      std::int64_t elements = parameter.elements();
      if (parameter.shape.size() < 2) {
        elements *= 2;  // the squares, then their mean's copy
      } else {
        for (const StateSpec& factor : state_of(parameter)) {
          elements += c10::multiply_integers(factor.shape);
        }
      }
      most = std::max(most, elements);
    }
    return most * element_bytes;
  }

  // torch/optim/_adafactor.py, _single_tensor_adafactor, operator by operator: one parameter after the other,
  // so that no more than one is there twice.
  void update(const OptimizerUpdate& u) const override {
    const auto step = static_cast<double>(u.earlier_steps + 1);
    const double weight = std::pow(step, config_.beta2_decay);  // of what is new
    for (std::size_t i = 0; i < u.parameters.size(); ++i) {
      const at::Tensor& parameter = u.parameters[i];
      const at::Tensor& gradient = u.gradients[i];
      const auto numbers = static_cast<double>(parameter.numel());
      const double eps = config_.eps[0] > 0                       ? config_.eps[0]
                         : parameter.scalar_type() == at::kDouble ? std::numeric_limits<double>::epsilon()
                                                                  : std::numeric_limits<float>::epsilon();
      const double rho = std::min(u.learning_rate, 1 / root(step));
      const double alpha = std::max(config_.eps[1], norm_of(parameter) / root(numbers)) * rho;
      if (u.weight_decay != 0) parameter.mul_(1 - u.learning_rate * u.weight_decay);
      at::Tensor update;
      if (u.state.size() == 2) {
        const at::Tensor &row = u.state[0][i], &column = u.state[1][i];
        row.lerp_(mean_square(gradient, -1), weight);
        column.lerp_(mean_square(gradient, -2), weight);
        update = at::matmul(row, column);
        update.div_(row.mean({-2}, /*keepdim=*/true).clamp_min_(eps));
      } else {
        u.state[0][i].lerp_(at::mul(gradient, gradient), weight);
        update = u.state[0][i].clone();
      }
      update.clamp_min_(eps * eps).rsqrt_().mul_(gradient);
      const double clip = std::max(1.0, norm_of(update) / (root(numbers) * config_.d));
      parameter.add_(update, -alpha / clip);
    }
  }

 private:
  AdafactorConfig config_;
};

}  // namespace

void describe(Fields& f, AdafactorConfig& c) {
  f.optional("lr", c.lr, "largest relative step, and the factor of the decay", json::at_least(0));
  f.optional("beta2_decay", c.beta2_decay, "at step t, what is new of the second moment weighs t^beta2_decay",
             json::between(-1e3, 0));
  f.optional("eps", c.eps, "least second moment (0: the dtype's epsilon), least root mean square of a weight",
             json::at_least(2));
  f.optional("d", c.d, "largest root mean square of an update, before the rate", json::at_least(1));
  f.optional("weight_decay", c.weight_decay, "decoupled", json::at_least(0));
  f.require(c.eps.size() == 2 && c.eps[0] >= 0 && c.eps[1] >= 0, "eps",
            "expected two numbers, each at least 0");
}

OptimizerPtr make_optimizer(const AdafactorConfig& config) { return std::make_shared<Adafactor>(config); }

}  // namespace stagecraft
