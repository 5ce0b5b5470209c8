#include "engine/records/settings/learning_rate.h"

#include "base/place_error.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

// The Warmup*LR are DeepSpeed's (deepspeed/runtime/lr_schedules.py), with its `last_batch_iteration` = the
// optimizer step; others are PyTorch's (torch/optim/lr_scheduler.py) and transformers' (optimization.py),
// with their closed forms.

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

double warmup(const std::string& type, std::int64_t step, std::int64_t steps) {
  return type == "log" ? log_warmup(step, steps) : linear_warmup(step, steps);
}

double warmup(const WarmupLRConfig& c, std::int64_t step) {
  const std::int64_t steps = warmup_steps(c.warmup_num_steps);
  return step >= steps ? 1 : warmup(c.warmup_type, step, steps);
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
    return at.optimizer_lr *
           (c.warmup_min_ratio + (1 - c.warmup_min_ratio) * warmup(c.warmup_type, at.step, steps));
  }
  const std::int64_t total = c.total_num_steps > 0 ? c.total_num_steps : at.total_steps;
  const double window = static_cast<double>(std::max<std::int64_t>(1, total - steps));
  const double progress = std::min(1.0, static_cast<double>(at.step - steps + 1) / window);
  const double cosine = (1 + std::cos(std::numbers::pi * progress)) / 2;
  return at.optimizer_lr * std::max(0.0, c.cos_min_ratio + (1 - c.cos_min_ratio) * cosine);
}

double linear(const LinearLRConfig& c, const LearningRateSite& at) {
  const auto all = static_cast<double>(c.total_iters);
  const double done = std::min(static_cast<double>(at.step), all);
  return at.optimizer_lr * (c.start_factor + (c.end_factor - c.start_factor) * done / all);
}

double cosine_with_restarts(const CosineRestartsLRConfig& c, const LearningRateSite& at) {
  std::int64_t period = c.period, since = at.step;
  if (c.factor == 1) since %= period;
  while (since >= period) {  // periods grow, so there are few
    since -= period;
    period *= c.factor;
  }
  const double angle = std::numbers::pi * static_cast<double>(since) / static_cast<double>(period);
  return c.eta_min + (at.optimizer_lr - c.eta_min) * (1 + std::cos(angle)) / 2;
}

double one_cycle(const OneCycleLRConfig& c, const LearningRateSite& at) {
  const auto total = static_cast<double>(c.total_num_steps > 0 ? c.total_num_steps : at.total_steps);
  const double first = c.max_lr / c.div_factor, last = first / c.final_div_factor;
  const double step = std::min(static_cast<double>(at.step), total - 1);
  const auto anneal = [&](double from, double to, double begin, double end) {
    const double part = end > begin ? (step - begin) / (end - begin) : 1;
    if (c.anneal_strategy == "linear") return (to - from) * part + from;
    return to + (from - to) / 2 * (std::cos(std::numbers::pi * part) + 1);
  };
  const double top = c.pct_start * total - 1;
  if (step <= top) return anneal(first, c.max_lr, 0, top);
  if (!c.three_phase) return anneal(c.max_lr, last, top, total - 1);
  const double back = 2 * c.pct_start * total - 2;
  return step <= back ? anneal(c.max_lr, first, top, back) : anneal(first, last, back, total - 1);
}

double inverse_sqrt(const InverseSqrtLRConfig& c, const LearningRateSite& at) {
  constexpr std::int64_t kTimescale = 10'000;  // transformers' own
  if (at.step < c.warmup_num_steps) return at.optimizer_lr * linear_warmup(at.step, c.warmup_num_steps);
  const std::int64_t timescale = c.timescale > 0          ? c.timescale
                                 : c.warmup_num_steps > 0 ? c.warmup_num_steps
                                                          : kTimescale;
  const auto shifted = static_cast<double>(at.step + timescale - c.warmup_num_steps);
  return at.optimizer_lr / std::sqrt(shifted / static_cast<double>(timescale));
}

double warmup_stable_decay(const WarmupStableDecayLRConfig& c, const LearningRateSite& at) {
  const std::int64_t total = c.total_num_steps > 0 ? c.total_num_steps : at.total_steps;
  const std::int64_t decays_at = total - c.decay_num_steps;
  double factor = 0;
  if (at.step < c.warmup_num_steps) {
    factor = linear_warmup(at.step, c.warmup_num_steps);
  } else if (at.step < decays_at) {
    return at.optimizer_lr;
  } else if (at.step < total) {
    const double part = static_cast<double>(at.step - decays_at) /
                        static_cast<double>(std::max<std::int64_t>(1, c.decay_num_steps));
    factor = c.decay_type == "linear"   ? 1 - part
             : c.decay_type == "1-sqrt" ? 1 - std::sqrt(part)
                                        : (1 + std::cos(std::numbers::pi * part)) / 2;
  }
  return at.optimizer_lr * (factor * (1 - c.min_lr_ratio) + c.min_lr_ratio);
}

}  // namespace

double SchedulerConfig::rate(const LearningRateSite& at) const {
  return placed([&] { return fmt::format("learning rate \"{}\", at step {}", type.name(), at.step); },
                [&] {
                  const double rate = type.make(at);
                  if (!std::isfinite(rate)) throw InternalError(fmt::format("it is {}", rate));
                  return rate;
                });
}

Registry<LearningRateKind>& LearningRateKind::registry() {
  // Never destroyed, and in the schema's order.
  static auto& all = *new Registry<LearningRateKind>([](Registry<LearningRateKind>& added) {
    added.add<ConstantLRConfig>("constant", constant);
    added.add<WarmupLRConfig>("WarmupLR", warmup_then_constant);
    added.add<WarmupDecayLRConfig>("WarmupDecayLR", warmup_then_decay);
    added.add<WarmupCosineLRConfig>("WarmupCosineLR", warmup_then_cosine);
    added.add<LinearLRConfig>("LinearLR", linear);
    added.add<CosineRestartsLRConfig>("CosineAnnealingWarmRestarts", cosine_with_restarts);
    added.add<OneCycleLRConfig>("OneCycleLR", one_cycle);
    added.add<InverseSqrtLRConfig>("InverseSqrtLR", inverse_sqrt);
    added.add<WarmupStableDecayLRConfig>("WarmupStableDecayLR", warmup_stable_decay);
  });
  return all;
}

void describe(Fields& f, SchedulerConfig& c) {
  f.registered("type", c.type,
               "constant, WarmupLR, WarmupDecayLR, WarmupCosineLR, LinearLR, CosineAnnealingWarmRestarts, "
               "OneCycleLR, InverseSqrtLR or WarmupStableDecayLR",
               "params");
}

void describe(Fields&, ConstantLRConfig&) {}

namespace {
void describe_warmup_type(Fields& f, std::string& type) {
  f.optional("warmup_type", type, "log or linear");
  f.require(type == "log" || type == "linear", "warmup_type",
            "expected \"log\" or \"linear\", found \"" + type + "\"");
}
}  // namespace

void describe(Fields& f, WarmupLRConfig& c) {
  f.optional("warmup_min_lr", c.warmup_min_lr, "at step 0", json::at_least(0));
  f.optional("warmup_max_lr", c.warmup_max_lr, "after the warm-up", json::at_least(0));
  f.optional("warmup_num_steps", c.warmup_num_steps, "steps of the warm-up", json::at_least(0));
  describe_warmup_type(f, c.warmup_type);
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
  describe_warmup_type(f, c.warmup_type);
  f.optional("cos_min_ratio", c.cos_min_ratio, "of the optimizer's lr, at the end", json::between(0, 1));
}

void describe(Fields& f, LinearLRConfig& c) {
  f.optional("start_factor", c.start_factor, "of the optimizer's lr, at step 0", json::from_up_to(0, 1));
  f.optional("end_factor", c.end_factor, "of the optimizer's lr, from step total_iters on",
             json::between(0, 1));
  f.optional("total_iters", c.total_iters, "steps from one to the other", json::at_least(1));
}

void describe(Fields& f, CosineRestartsLRConfig& c) {
  f.required("T_0", c.period, "steps to the first restart", json::at_least(1));
  f.optional("T_mult", c.factor, "by which periods grow from restart to restart", json::at_least(1));
  f.optional("eta_min", c.eta_min, "lowest rate", json::at_least(0));
}

void describe(Fields& f, OneCycleLRConfig& c) {
  f.required("max_lr", c.max_lr, "at the top of the cycle, in place of the optimizer's", json::at_least(0));
  f.optional("total_num_steps", c.total_num_steps, "of the cycle; 0: the run's steps", json::at_least(0));
  f.optional("pct_start", c.pct_start, "part of the cycle in which the rate rises", json::between(0, 1));
  f.optional("anneal_strategy", c.anneal_strategy, "cos or linear");
  f.optional("div_factor", c.div_factor, "max_lr over the first rate", json::above(0));
  f.optional("final_div_factor", c.final_div_factor, "the first rate over the last one", json::above(0));
  f.optional("three_phase", c.three_phase, "back to the first rate before the last descent");
  f.require(c.anneal_strategy == "cos" || c.anneal_strategy == "linear", "anneal_strategy",
            "expected \"cos\" or \"linear\", found \"" + c.anneal_strategy + "\"");
}

void describe(Fields& f, InverseSqrtLRConfig& c) {
  f.optional("warmup_num_steps", c.warmup_num_steps, "steps of the linear warm-up", json::at_least(0));
  f.optional("timescale", c.timescale,
             "steps after which the rate is down to 0.7; 0: the warm-up, or 10,000 without one",
             json::at_least(0));
}

void describe(Fields& f, WarmupStableDecayLRConfig& c) {
  f.optional("warmup_num_steps", c.warmup_num_steps, "steps of the linear warm-up", json::at_least(0));
  f.required("decay_num_steps", c.decay_num_steps, "steps of the decay, the run's last", json::at_least(0));
  f.optional("total_num_steps", c.total_num_steps, "where the decay ends; 0: the run's steps",
             json::at_least(0));
  f.optional("decay_type", c.decay_type, "cosine, linear or 1-sqrt");
  f.optional("min_lr_ratio", c.min_lr_ratio, "of the optimizer's lr, at both ends", json::between(0, 1));
  f.require(c.decay_type == "cosine" || c.decay_type == "linear" || c.decay_type == "1-sqrt", "decay_type",
            "expected \"cosine\", \"linear\" or \"1-sqrt\", found \"" + c.decay_type + "\"");
}

}  // namespace stagecraft
