#include "engine/optimizers/muon.h"

#include "engine/optimizers/adam.h"
#include "engine/optimizers/name_pattern.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/lerp.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mm.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace stagecraft {
namespace {

constexpr const char* kMomentum = "momentum_buffer";

class Muon final : public Optimizer {
 public:
  explicit Muon(const MuonConfig& config) : config_(config) {
    adam_.betas = config.adam_betas;
    adam_.eps = config.adam_eps;
  }

  double learning_rate() const override { return config_.lr; }
  double rate_factor(const ParameterSite& parameter) const override {
    return orthogonal(parameter) || config_.adam_lr == 0 ? 1 : config_.adam_lr / config_.lr;
  }
  double weight_decay(const ParameterSite& parameter) const override {
    return orthogonal(parameter) ? config_.weight_decay : config_.adam_weight_decay;
  }
  std::vector<StateSpec> state_of(const ParameterSite& parameter) const override {
    if (orthogonal(parameter)) return {{kMomentum, parameter.shape}};
    return adam_state(parameter);
  }
  std::int64_t workspace_bytes(const std::vector<ParameterSite>& together,
                               std::int64_t element_bytes) const override {
    std::int64_t most = 0;
    for (const ParameterSite& parameter : together) {
      if (orthogonal(parameter)) most = std::max(most, iteration_bytes(parameter.shape, element_bytes));
    }
    return most;
  }
  void update(const OptimizerUpdate& u) const override {
    if (u.state_names.front() != kMomentum) return adam_update(u, adam_, /*decoupled=*/true);
    for (std::size_t i = 0; i < u.parameters.size(); ++i) {
      step(u.parameters[i], u.gradients[i], u.state[0][i], u.learning_rate, u.weight_decay);
    }
  }

 private:
  [[nodiscard]] bool orthogonal(const ParameterSite& parameter) const {
    return parameter.hidden && parameter.shape.size() == 2 &&
           !matches_any(config_.adam_parameters, parameter.name);
  }
  [[nodiscard]] at::ScalarType iteration_dtype() const {
    return config_.ns_dtype == "bfloat16" ? at::kBFloat16 : at::kFloat;
  }

  /// At most: the momentum looked ahead and its copy for the iterations; what these hold at once, which is a
  /// matrix, the next one and a product of its shorter side; in the end a copy of the parameter's dtype. oneDNN
  /// multiplies narrow matrices in blocks, of which it makes a copy.
  [[nodiscard]] std::int64_t iteration_bytes(const std::vector<std::int64_t>& shape,
                                             std::int64_t element_bytes) const {
    constexpr std::int64_t kBlock = 64;       // rows and columns are rounded up to it
    constexpr std::int64_t kSmall = 1 << 14;  // buffers that do not depend on the matrix
    const auto rounded = [](std::int64_t size) { return (size + kBlock - 1) / kBlock * kBlock; };
    const std::int64_t matrix = shape[0] * shape[1];
    const std::int64_t shorter = std::min(shape[0], shape[1]);
    const auto narrow = static_cast<std::int64_t>(c10::elementSize(iteration_dtype()));
    const std::int64_t ahead = config_.nesterov ? matrix * element_bytes : 0;
    const std::int64_t blocks = iteration_dtype() == at::kFloat ? 0 : rounded(shape[0]) * rounded(shape[1]);
    return kSmall + std::max({ahead + matrix * narrow, (2 * matrix + shorter * shorter + blocks) * narrow,
                              matrix * (narrow + element_bytes)});
  }

  // torch/optim/_muon.py, _single_tensor_muon, operator by operator.
  void step(const at::Tensor& parameter, const at::Tensor& gradient, const at::Tensor& momentum, double rate,
            double weight_decay) const {
    momentum.lerp_(gradient, 1 - config_.momentum);
    const at::Tensor update =
        orthogonalized(config_.nesterov ? gradient.lerp(momentum, config_.momentum) : momentum);
    parameter.mul_(1 - rate * weight_decay);
    parameter.add_(update, -rate * rate_adjustment(parameter));
  }

  /// U V^T of the matrix's U S V^T, nearly: Newton-Schulz iterations of the fifth order.
  [[nodiscard]] at::Tensor orthogonalized(at::Tensor matrix) const {
    const bool tall = matrix.size(0) > matrix.size(1);
    at::Tensor x = matrix.to(iteration_dtype(), /*non_blocking=*/false, /*copy=*/true);
    matrix.reset();
    if (tall) x = x.t();
    x.div_(at::linalg_vector_norm(x, 2).clamp_min_(config_.eps));
    const double a = config_.ns_coefficients[0], b = config_.ns_coefficients[1],
                 c = config_.ns_coefficients[2];
    for (int i = 0; i < config_.ns_steps; ++i) {
      at::Tensor gram = at::mm(x, x.t());
      gram = at::addmm(gram, gram, gram, b, c);
      x = at::addmm(x, gram, x, a);
    }
    return tall ? x.t() : x;
  }

  [[nodiscard]] double rate_adjustment(const at::Tensor& parameter) const {
    const auto rows = static_cast<double>(parameter.size(0));
    const auto columns = static_cast<double>(parameter.size(1));
    if (config_.adjust_lr_fn == "original") return std::sqrt(std::max(1.0, rows / columns));
    return 0.2 * std::sqrt(std::max(rows, columns));
  }

  MuonConfig config_;
  AdamParameters adam_;
};

}  // namespace

void describe(Fields& f, MuonConfig& c) {
  f.optional("lr", c.lr, "learning rate of hidden matrices", json::at_least(0));
  f.optional("weight_decay", c.weight_decay, "of hidden matrices, decoupled", json::at_least(0));
  f.optional("momentum", c.momentum, "of hidden matrices", json::from_up_to(0, 1));
  f.optional("nesterov", c.nesterov, "Nesterov momentum");
  f.optional("ns_coefficients", c.ns_coefficients, "of the Newton-Schulz iteration", json::at_least(3));
  f.optional("eps", c.eps, "least norm that a momentum is divided by", json::above(0));
  f.optional("ns_steps", c.ns_steps, "Newton-Schulz iterations", json::between(1, 99));
  f.optional("adjust_lr_fn", c.adjust_lr_fn,
             "original: the rate times the root of rows over columns, if that is above 1; match_rms_adamw: "
             "times 0.2 roots of the longer side, so that AdamW's rates and decays serve");
  f.optional("ns_dtype", c.ns_dtype, "that the iterations are computed in: bfloat16 or float32");
  f.optional("adam_parameters", c.adam_parameters,
             "patterns (* and ?) of hidden matrices that are AdamW's all the same, as layer.parameter");
  f.optional("adam_lr", c.adam_lr, "learning rate of all other parameters; 0: lr", json::at_least(0));
  f.optional("adam_betas", c.adam_betas, "AdamW's, of all other parameters", json::at_least(2));
  f.optional("adam_eps", c.adam_eps, "likewise", json::above(0));
  f.optional("adam_weight_decay", c.adam_weight_decay, "likewise", json::at_least(0));
  f.require(c.ns_coefficients.size() == 3, "ns_coefficients", "expected three numbers");
  f.require(is_betas(c.adam_betas), "adam_betas", kBetasExpected);
  f.require(c.adjust_lr_fn == "original" || c.adjust_lr_fn == "match_rms_adamw", "adjust_lr_fn",
            "expected \"original\" or \"match_rms_adamw\", found \"" + c.adjust_lr_fn + "\"");
  f.require(c.ns_dtype == "bfloat16" || c.ns_dtype == "float32", "ns_dtype",
            "expected \"bfloat16\" or \"float32\", found \"" + c.ns_dtype + "\"");
  f.require(c.adam_lr == 0 || c.lr > 0, "adam_lr", "needs lr above 0, which schedules scale both by");
}

OptimizerPtr make_optimizer(const MuonConfig& config) { return std::make_shared<Muon>(config); }

}  // namespace stagecraft
