#pragma once

// Optimizers: what makes new weights of weights and gradients. Built-in and added ones:
//
//   optimizers().add<LionSettings>("Lion", make_lion);
//
// An optimizer knows no model and holds no state. model_optimizer.h applies it to a model's layers, with the
// config's parameter groups.

#include "base/registry.h"
#include "models/layers/layer.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace stagecraft {

/// A parameter as an optimizer meets it before the run: what its state follows from.
struct ParameterSite {
  std::string name;  ///< "block3.attention.weight": layer, then parameter
  std::vector<std::int64_t> shape;
  /// Of a hidden layer: neither of the model's first nor of its last layer with a matrix, which read and
  /// write the data's own features (embeddings, heads); and no table whose rows indices choose.
  bool hidden = false;

  [[nodiscard]] std::int64_t elements() const;
};

/// A tensor that an optimizer keeps of one parameter, of the parameter's dtype; zeros at first.
struct StateSpec {
  std::string name;  ///< "exp_avg"; as in checkpoints
  std::vector<std::int64_t> shape;
};

/// What one update is given: parameters of a layer that share rate and decay, and names of state.
struct OptimizerUpdate {
  Tensors parameters{};            ///< updated in place
  Tensors gradients{};             ///< only read
  double learning_rate = 0;        ///< of these
  double weight_decay = 0;         ///< of these; 0: none
  std::int64_t earlier_steps = 0;  ///< updates before this one
  double staleness = 0;  ///< how many updates late the gradients are, in the mean over micro-batches
  std::vector<std::string> state_names{};  ///< those of Optimizer::state_of, the same of all parameters here
  std::vector<Tensors> state{};            ///< by name, then by parameter; zeros at first
};

/// Immutable; used by all ranks of a process at once.
class Optimizer {
 public:
  virtual ~Optimizer() = default;

  /// What its settings say, before a schedule of learning rates and before groups.
  [[nodiscard]] virtual double learning_rate() const = 0;
  /// Likewise, of the parameters that decay.
  [[nodiscard]] virtual double weight_decay(const ParameterSite& parameter) const = 0;
  /// By what the schedule's learning rate is multiplied for a parameter.
  [[nodiscard]] virtual double rate_factor(const ParameterSite& /*parameter*/) const { return 1; }
  /// Whether each element's update is made of that element's numbers alone: no sums over a parameter.
  [[nodiscard]] virtual bool is_elementwise() const { return false; }
  /// The tensors it keeps of a parameter.
  [[nodiscard]] virtual std::vector<StateSpec> state_of(const ParameterSite& parameter) const = 0;
  /// Most bytes of tensors that update() makes for itself and holds at once, for parameters that come
  /// together, with elements of so many bytes. A few scalars do not count. The memory proof relies on it where
  /// no update was measured: for estimates and on devices. (On the CPU the profile measures it, with the buffers
  /// of matrix products, which depend on processor and threads.)
  [[nodiscard]] virtual std::int64_t workspace_bytes(const std::vector<ParameterSite>& /*together*/,
                                                     std::int64_t /*element_bytes*/) const {
    return 0;
  }
  virtual void update(const OptimizerUpdate& update) const = 0;
};
using OptimizerPtr = std::shared_ptr<const Optimizer>;

struct OptimizerKind {
  struct Site {};
  using Product = OptimizerPtr;
  static constexpr const char* kWhat = "optimizer";
  static Registry<OptimizerKind>& registry();
};
[[nodiscard]] inline Registry<OptimizerKind>& optimizers() { return OptimizerKind::registry(); }

}  // namespace stagecraft
