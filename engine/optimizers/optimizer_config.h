#pragma once

// The `optimizer` part of a config: a registered optimizer, groups of parameters that have a rate or a decay
// of their own, and the average of the weights.

#include "base/json.h"
#include "engine/optimizers/optimizer.h"

#include <optional>
#include <string>
#include <vector>

namespace stagecraft {

/// Parameters with values of their own, as PyTorch's parameter groups are. A parameter belongs to the first
/// group that it fits.
struct ParameterGroup {
  std::vector<std::string> parameters{"*"};  ///< patterns (name_pattern.h) of "layer.parameter"
  std::optional<int> most_dimensions;        ///< and no more dimensions than that; absent: any
  std::optional<double> lr;                  ///< in place of the optimizer's; absent: that one
  std::optional<double> weight_decay;        ///< likewise
};
template <class V>
void describe(V& v, ParameterGroup& g) {
  v.optional("parameters", g.parameters, "patterns of layer.parameter: * is any text, ? one character",
             json::non_empty());
  v.optional("most_dimensions", g.most_dimensions,
             "and only those of at most so many dimensions: 1 is biases and norms", json::at_least(0));
  v.optional("lr", g.lr, "in place of the optimizer's; schedules scale it alike", json::at_least(0));
  v.optional("weight_decay", g.weight_decay, "in place of the optimizer's", json::at_least(0));
}

/// Against the staleness of asynchronous schedules. Does nothing where staleness is 0.
struct StalenessConfig {
  /// Weights that will be read late are written as they are expected to be then: ahead by the last update,
  /// times their staleness and this factor (SpecTrain, arXiv 1809.02839; XPipe, arXiv 1911.04610). 0: not.
  double look_ahead = 0;
  /// The rate is divided by (1 + staleness)^p, where p falls from 1 to 0 over so many updates (PipeMare,
  /// MLSys 2021, T1).
  std::int64_t discount_steps = 0;
};
template <class V>
void describe(V& v, StalenessConfig& c) {
  v.optional("look_ahead", c.look_ahead,
             "write weights that will be read late ahead by the last update, times their staleness and this; "
             "keeps one copy of the weights; 0: not",
             json::at_least(0));
  v.optional("discount_steps", c.discount_steps,
             "divide the rate by (1 + staleness)^p, where p falls from 1 to 0 over so many updates",
             json::at_least(0));
}

struct OptimizerConfig {
  Named<OptimizerKind> type;
  std::vector<ParameterGroup> groups{};
  std::optional<double> ema_decay{};  ///< absent: weights are not averaged
  StalenessConfig staleness{};

  [[nodiscard]] OptimizerPtr make() const { return type.make({}); }
};
template <class V>
void describe(V& v, OptimizerConfig& c) {
  v.registered("type", c.type, "SGD, SGDW, Adam, AdamW, NAdam, Lion, Adafactor or Muon", "params");
  v.optional("groups", c.groups,
             "parameters with a rate or a decay of their own; each belongs to the first group that it fits");
  v.optional("ema_decay", c.ema_decay,
             "keep an exponential moving average of the weights, with this decay per step: it is validated "
             "and exported; absent: none",
             json::from_up_to(0, 1));
  v.optional("staleness", c.staleness, "asynchronous schedules: what is done against late gradients");
}

}  // namespace stagecraft
