#include "stagecraft/engine/settings/optimizer_config.h"

#include <algorithm>
#include <cmath>
#include <numbers>

// DeepSpeed's formulas (deepspeed/runtime/lr_schedules.py), with its `last_batch_iteration` = the optimizer
// step.

namespace stagecraft {
namespace {

struct Moment {
  std::int64_t step;
  std::int64_t total_steps;
  double optimizer_lr;
};

/// DeepSpeed never warms up in fewer than two steps: log(1) would divide by zero.
std::int64_t warmup_steps(std::int64_t configured) { return std::max<std::int64_t>(2, configured); }

double log_warmup(std::int64_t step, std::int64_t steps) {
  return std::log(static_cast<double>(step + 1)) / std::log(static_cast<double>(steps));
}

double linear_warmup(std::int64_t step, std::int64_t steps) {
  return static_cast<double>(step) / static_cast<double>(steps);
}

double warmup(const WarmupLRConfig& c, std::int64_t step) {
  const std::int64_t steps = warmup_steps(c.warmup_num_steps);
  if (step >= steps) return 1;
  return c.warmup_type == "log" ? log_warmup(step, steps) : linear_warmup(step, steps);
}

double between_rates(const WarmupLRConfig& c, double gamma) {
  return c.warmup_min_lr + (c.warmup_max_lr - c.warmup_min_lr) * gamma;
}

double rate(const ConstantLRConfig&, const Moment& at) { return at.optimizer_lr; }

double rate(const WarmupLRConfig& c, const Moment& at) { return between_rates(c, warmup(c, at.step)); }

double rate(const WarmupDecayLRConfig& c, const Moment& at) {
  const std::int64_t steps = warmup_steps(c.warmup_num_steps);
  if (at.step < steps) return between_rates(c, warmup(c, at.step));
  const std::int64_t total = c.total_num_steps > 0 ? c.total_num_steps : at.total_steps;
  const double left = static_cast<double>(total - at.step);
  const double window = std::max(1.0, static_cast<double>(total - steps));
  return between_rates(c, std::max(0.0, left / window));
}

double rate(const WarmupCosineLRConfig& c, const Moment& at) {
  const std::int64_t steps = warmup_steps(c.warmup_num_steps);
  if (at.step < steps) {
    return at.optimizer_lr * (c.warmup_min_ratio + (1 - c.warmup_min_ratio) * log_warmup(at.step, steps));
  }
  const std::int64_t total = c.total_num_steps > 0 ? c.total_num_steps : at.total_steps;
  const double window = static_cast<double>(std::max<std::int64_t>(1, total - steps));
  const double progress = std::min(1.0, static_cast<double>(at.step - steps + 1) / window);
  const double cosine = (1 + std::cos(std::numbers::pi * progress)) / 2;
  return at.optimizer_lr * std::max(0.0, c.cos_min_ratio + (1 - c.cos_min_ratio) * cosine);
}

}  // namespace

double learning_rate(const SchedulerConfig& scheduler, const OptimizerConfig& optimizer, std::int64_t step,
                     std::int64_t total_steps) {
  const double lr = std::visit([](const auto& type) { return type.lr; }, optimizer.type);
  const Moment at{step, total_steps, lr};
  return std::visit([&](const auto& type) { return rate(type, at); }, scheduler.type);
}

}  // namespace stagecraft
