#pragma once

// What a config says of the learning rate over a run's steps, with DeepSpeed's names and formulas. Built-in
// and added ones:
//
//   learning_rates().add<CyclicSettings>("cyclic", cyclic_rate);

#include "stagecraft/base/registry.h"

#include <cstdint>
#include <string>

namespace stagecraft {

/// The moment a rate is asked for.
struct LearningRateSite {
  std::int64_t step = 0;         ///< optimizer step, from 0
  std::int64_t total_steps = 0;  ///< of the run
  double optimizer_lr = 0;       ///< what the optimizer's settings say
};

/// What makes a rate is a pure function.
struct LearningRateKind {
  using Site = LearningRateSite;
  using Product = double;
  static constexpr const char* kWhat = "learning rate";
  static Registry<LearningRateKind>& registry();
};
[[nodiscard]] inline Registry<LearningRateKind>& learning_rates() { return LearningRateKind::registry(); }

/// The `scheduler` part of a config.
struct SchedulerConfig {
  Named<LearningRateKind> type;

  [[nodiscard]] double rate(const LearningRateSite& at) const { return type.make(at); }
};
void describe(Fields& f, SchedulerConfig& c);

/// The optimizer's own, at every step.
struct ConstantLRConfig {};
struct WarmupLRConfig {
  double warmup_min_lr = 0, warmup_max_lr = 1e-3;
  std::int64_t warmup_num_steps = 1000;
  std::string warmup_type = "log";
};
struct WarmupDecayLRConfig : WarmupLRConfig {
  std::int64_t total_num_steps = 0;  ///< 0: the run's steps
};
struct WarmupCosineLRConfig {
  std::int64_t total_num_steps = 0;  ///< 0: the run's steps
  double warmup_min_ratio = 0, cos_min_ratio = 1e-4;
  std::int64_t warmup_num_steps = 1000;
};
void describe(Fields& f, ConstantLRConfig& c);
void describe(Fields& f, WarmupLRConfig& c);
void describe(Fields& f, WarmupDecayLRConfig& c);
void describe(Fields& f, WarmupCosineLRConfig& c);

}  // namespace stagecraft
