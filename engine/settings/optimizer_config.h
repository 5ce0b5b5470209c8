#pragma once

// What a config says of the optimizer and its learning rate, with DeepSpeed's names and formulas.

#include "stagecraft/base/describe.h"

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace stagecraft {

struct SgdConfig {
  static constexpr const char* kName = "SGD";
  double lr = 0.01, momentum = 0, dampening = 0, weight_decay = 0;
  bool nesterov = false;
};
template <class V>
void describe(V& v, SgdConfig& c) {
  v.optional("lr", c.lr, "learning rate", json::at_least(0));
  v.optional("momentum", c.momentum, "0: none", json::from_up_to(0, 1));
  v.optional("dampening", c.dampening, "of the momentum", json::between(0, 1));
  v.optional("weight_decay", c.weight_decay, "added to the gradient", json::at_least(0));
  v.optional("nesterov", c.nesterov, "Nesterov momentum");
  v.require(!c.nesterov || (c.momentum > 0 && c.dampening == 0), "nesterov",
            "Nesterov momentum needs momentum above 0 and dampening 0");
}

struct AdamParameters {
  double lr = 1e-3;
  std::vector<double> betas{0.9, 0.999};
  double eps = 1e-8;
  double weight_decay = 0;
};
template <class V>
void describe(V& v, AdamParameters& c) {
  v.optional("lr", c.lr, "learning rate", json::at_least(0));
  v.optional("betas", c.betas, "decay of the first and second moment", json::at_least(2));
  v.optional("eps", c.eps, "added to the root of the second moment", json::above(0));
  v.optional("weight_decay", c.weight_decay, "Adam: added to the gradient; AdamW: decoupled",
             json::at_least(0));
  v.require(c.betas.size() == 2 && c.betas[0] >= 0 && c.betas[0] < 1 && c.betas[1] >= 0 && c.betas[1] < 1,
            "betas", "expected two numbers, each at least 0 and below 1");
}
struct AdamConfig : AdamParameters {
  static constexpr const char* kName = "Adam";
};
struct AdamWConfig : AdamParameters {
  static constexpr const char* kName = "AdamW";
  AdamWConfig() { weight_decay = 0.01; }
};

struct OptimizerConfig {
  std::variant<SgdConfig, AdamConfig, AdamWConfig> type;
};
template <class V>
void describe(V& v, OptimizerConfig& c) {
  v.alternatives("type", c.type, "SGD, Adam or AdamW", "params");
}

struct WarmupLRConfig {
  static constexpr const char* kName = "WarmupLR";
  double warmup_min_lr = 0, warmup_max_lr = 1e-3;
  std::int64_t warmup_num_steps = 1000;
  std::string warmup_type = "log";
};
struct WarmupDecayLRConfig : WarmupLRConfig {
  static constexpr const char* kName = "WarmupDecayLR";
  std::int64_t total_num_steps = 0;  ///< 0: the run's steps
};
struct WarmupCosineLRConfig {
  static constexpr const char* kName = "WarmupCosineLR";
  std::int64_t total_num_steps = 0;  ///< 0: the run's steps
  double warmup_min_ratio = 0, cos_min_ratio = 1e-4;
  std::int64_t warmup_num_steps = 1000;
};
struct ConstantLRConfig {
  static constexpr const char* kName = "constant";
};
template <class V>
void describe(V&, ConstantLRConfig&) {}
template <class V>
void describe(V& v, WarmupLRConfig& c) {
  v.optional("warmup_min_lr", c.warmup_min_lr, "at step 0", json::at_least(0));
  v.optional("warmup_max_lr", c.warmup_max_lr, "after the warm-up", json::at_least(0));
  v.optional("warmup_num_steps", c.warmup_num_steps, "steps of the warm-up", json::at_least(0));
  v.optional("warmup_type", c.warmup_type, "log or linear");
  v.require(c.warmup_type == "log" || c.warmup_type == "linear", "warmup_type",
            "expected \"log\" or \"linear\", found \"" + c.warmup_type + "\"");
}
template <class V>
void describe(V& v, WarmupDecayLRConfig& c) {
  describe(v, static_cast<WarmupLRConfig&>(c));
  v.optional("total_num_steps", c.total_num_steps, "where the rate reaches 0; 0: the run's steps",
             json::at_least(0));
}
template <class V>
void describe(V& v, WarmupCosineLRConfig& c) {
  v.optional("total_num_steps", c.total_num_steps, "where the rate reaches its end; 0: the run's steps",
             json::at_least(0));
  v.optional("warmup_min_ratio", c.warmup_min_ratio, "of the optimizer's lr, at step 0", json::between(0, 1));
  v.optional("warmup_num_steps", c.warmup_num_steps, "steps of the warm-up", json::at_least(0));
  v.optional("cos_min_ratio", c.cos_min_ratio, "of the optimizer's lr, at the end", json::between(0, 1));
}

struct SchedulerConfig {
  std::variant<ConstantLRConfig, WarmupLRConfig, WarmupDecayLRConfig, WarmupCosineLRConfig> type;
};
template <class V>
void describe(V& v, SchedulerConfig& c) {
  v.alternatives("type", c.type, "constant, WarmupLR, WarmupDecayLR or WarmupCosineLR", "params");
}

/// The rate of optimizer step `step` (from 0) of a run of `total_steps`. Pure.
[[nodiscard]] double learning_rate(const SchedulerConfig& scheduler, const OptimizerConfig& optimizer,
                                   std::int64_t step, std::int64_t total_steps);

}  // namespace stagecraft
