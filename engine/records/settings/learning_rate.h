#pragma once

// What a config says of the learning rate over a run's steps, with the names and formulas of DeepSpeed,
// PyTorch and transformers. Built-in and added ones:
//
//   learning_rates().add<CyclicSettings>("cyclic", cyclic_rate);

#include "base/registry.h"

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

  /// Throws InternalError where it is no finite number; names the learning rate in whatever it throws.
  [[nodiscard]] double rate(const LearningRateSite& at) const;
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
  std::string warmup_type = "log";
};
/// PyTorch's. From start_factor times the optimizer's rate to end_factor times, over total_iters steps.
struct LinearLRConfig {
  double start_factor = 1.0 / 3, end_factor = 1;
  std::int64_t total_iters = 5;
};
/// PyTorch's CosineAnnealingWarmRestarts (Loshchilov, Hutter, ICLR'17): half a cosine down to eta_min over
/// T_0 steps, then again from the top over T_mult times as many.
struct CosineRestartsLRConfig {
  std::int64_t period = 0;  ///< T_0
  std::int64_t factor = 1;  ///< T_mult
  double eta_min = 0;
};
/// PyTorch's OneCycleLR (Smith, Topin, arXiv 1708.07120), without its momentum.
struct OneCycleLRConfig {
  double max_lr = 0;
  std::int64_t total_num_steps = 0;  ///< 0: the run's steps
  double pct_start = 0.3, div_factor = 25, final_div_factor = 1e4;
  std::string anneal_strategy = "cos";
  bool three_phase = false;
};
/// transformers' get_inverse_sqrt_schedule: linear warm-up, then as 1 / sqrt(step).
struct InverseSqrtLRConfig {
  std::int64_t warmup_num_steps = 0;
  std::int64_t timescale = 0;  ///< 0: the warm-up, or 10,000 without one
};
/// transformers' get_wsd_schedule (Hu et al., arXiv 2404.06395): linear warm-up, stable, decay at the end.
struct WarmupStableDecayLRConfig {
  std::int64_t warmup_num_steps = 0, decay_num_steps = 0;
  std::int64_t total_num_steps = 0;  ///< 0: the run's steps
  std::string decay_type = "cosine";
  double min_lr_ratio = 0;
};
void describe(Fields& f, ConstantLRConfig& c);
void describe(Fields& f, LinearLRConfig& c);
void describe(Fields& f, CosineRestartsLRConfig& c);
void describe(Fields& f, OneCycleLRConfig& c);
void describe(Fields& f, InverseSqrtLRConfig& c);
void describe(Fields& f, WarmupStableDecayLRConfig& c);
void describe(Fields& f, WarmupLRConfig& c);
void describe(Fields& f, WarmupDecayLRConfig& c);
void describe(Fields& f, WarmupCosineLRConfig& c);

}  // namespace stagecraft
