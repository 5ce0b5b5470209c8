#include "stagecraft/engine/settings/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

// DeepSpeed's formulas (deepspeed/runtime/lr_schedules.py), with its `last_batch_iteration` = the optimizer
// step.

namespace stagecraft {
namespace {

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

double constant(const ConstantLRConfig&, const LearningRateSite& at) { return at.optimizer_lr; }

double warmup_then_constant(const WarmupLRConfig& c, const LearningRateSite& at) {
  return between_rates(c, warmup(c, at.step));
}

double warmup_then_decay(const WarmupDecayLRConfig& c, const LearningRateSite& at) {
  const std::int64_t steps = warmup_steps(c.warmup_num_steps);
  if (at.step < steps) return between_rates(c, warmup(c, at.step));
  const std::int64_t total = c.total_num_steps > 0 ? c.total_num_steps : at.total_steps;
  const double left = static_cast<double>(total - at.step);
  const double window = std::max(1.0, static_cast<double>(total - steps));
  return between_rates(c, std::max(0.0, left / window));
}

double warmup_then_cosine(const WarmupCosineLRConfig& c, const LearningRateSite& at) {
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

Registry<LearningRateKind>& LearningRateKind::registry() {
  // Never destroyed, and in the schema's order.
  static auto& all = *new Registry<LearningRateKind>([](Registry<LearningRateKind>& added) {
    added.add<ConstantLRConfig>("constant", constant);
    added.add<WarmupLRConfig>("WarmupLR", warmup_then_constant);
    added.add<WarmupDecayLRConfig>("WarmupDecayLR", warmup_then_decay);
    added.add<WarmupCosineLRConfig>("WarmupCosineLR", warmup_then_cosine);
  });
  return all;
}

void describe(Fields& f, SchedulerConfig& c) {
  f.registered("type", c.type, "constant, WarmupLR, WarmupDecayLR or WarmupCosineLR", "params");
}

void describe(Fields&, ConstantLRConfig&) {}

void describe(Fields& f, WarmupLRConfig& c) {
  f.optional("warmup_min_lr", c.warmup_min_lr, "at step 0", json::at_least(0));
  f.optional("warmup_max_lr", c.warmup_max_lr, "after the warm-up", json::at_least(0));
  f.optional("warmup_num_steps", c.warmup_num_steps, "steps of the warm-up", json::at_least(0));
  f.optional("warmup_type", c.warmup_type, "log or linear");
  f.require(c.warmup_type == "log" || c.warmup_type == "linear", "warmup_type",
            "expected \"log\" or \"linear\", found \"" + c.warmup_type + "\"");
}

void describe(Fields& f, WarmupDecayLRConfig& c) {
  describe(f, static_cast<WarmupLRConfig&>(c));
  f.optional("total_num_steps", c.total_num_steps, "where the rate reaches 0; 0: the run's steps",
             json::at_least(0));
}

void describe(Fields& f, WarmupCosineLRConfig& c) {
  f.optional("total_num_steps", c.total_num_steps, "where the rate reaches its end; 0: the run's steps",
             json::at_least(0));
  f.optional("warmup_min_ratio", c.warmup_min_ratio, "of the optimizer's lr, at step 0", json::between(0, 1));
  f.optional("warmup_num_steps", c.warmup_num_steps, "steps of the warm-up", json::at_least(0));
  f.optional("cos_min_ratio", c.cos_min_ratio, "of the optimizer's lr, at the end", json::between(0, 1));
}

}  // namespace stagecraft
