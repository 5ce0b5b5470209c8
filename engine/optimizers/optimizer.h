#pragma once

// Optimizers. State is per layer and travels with the layer, so that a checkpoint does not know about stages.
// Built-in and added ones:
//
//   optimizers().add<LionSettings>("Lion", make_lion);

#include "stagecraft/base/registry.h"
#include "stagecraft/models/layer.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace stagecraft {

/// Optimizer state of one layer: named tensors per parameter ("exp_avg" of parameter 0, ...), and how many
/// updates it has seen.
struct OptimizerState {
  std::vector<std::map<std::string, at::Tensor>> tensors;  ///< by parameter
  std::int64_t steps = 0;
};

/// What one update is given: parameters of a layer that share a weight decay.
struct OptimizerUpdate {
  Tensors parameters{};  ///< updated in place
  Tensors gradients{};
  double learning_rate = 0;
  bool decays = true;              ///< weight decay applies
  std::int64_t earlier_steps = 0;  ///< updates before this one
  std::vector<Tensors> state{};    ///< by name (Optimizer::state_names), then by parameter; zeros at first
};

/// Immutable; used by all ranks of a process at once.
class Optimizer {
 public:
  virtual ~Optimizer() = default;

  /// What its settings say, before a schedule of learning rates.
  [[nodiscard]] virtual double learning_rate() const = 0;
  /// The tensors it keeps per parameter, each of the parameter's shape and dtype. As in checkpoints.
  [[nodiscard]] virtual std::vector<std::string> state_names() const = 0;
  virtual void update(const OptimizerUpdate& update) const = 0;

  /// State bytes per parameter byte: SGD 0 or 1 (momentum), Adam and AdamW 2.
  [[nodiscard]] double bytes_per_parameter_byte() const { return static_cast<double>(state_names().size()); }
};
using OptimizerPtr = std::shared_ptr<const Optimizer>;

/// One update of one layer, in place, with `learning_rate`. `decays[i]`: weight decay applies to parameter i.
/// State tensors are made on first use.
void optimizer_step(const Optimizer& optimizer, double learning_rate, const Tensors& parameters,
                    const Tensors& gradients, const std::vector<bool>& decays, OptimizerState& state);

struct OptimizerKind {
  struct Site {};
  using Product = OptimizerPtr;
  static constexpr const char* kWhat = "optimizer";
  static Registry<OptimizerKind>& registry();
};
[[nodiscard]] inline Registry<OptimizerKind>& optimizers() { return OptimizerKind::registry(); }

/// The `optimizer` part of a config.
struct OptimizerConfig {
  Named<OptimizerKind> type;

  [[nodiscard]] OptimizerPtr make() const { return type.make({}); }
};
void describe(Fields& f, OptimizerConfig& c);

}  // namespace stagecraft
