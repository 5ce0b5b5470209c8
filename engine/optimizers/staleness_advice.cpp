#include "engine/optimizers/staleness_advice.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string_view>

namespace stagecraft {
namespace {

/// Those that ended far above the synchronous run, with and without a look-ahead.
constexpr std::array<std::string_view, 3> kLagging{"Adam", "AdamW", "NAdam"};
/// That which the look-ahead brought near it.
constexpr std::string_view kBetterAhead = "Muon";
/// Above it, runs with a look-ahead ended visibly above the synchronous one.
constexpr double kMeanLateness = 0.5;

}  // namespace

const char* asynchronous_optimizer() {
  return R"({"type": "Muon", "params": {"lr": 8e-3, "adjust_lr_fn": "match_rms_adamw", "adam_betas": [0.9, 0.99], )"
         R"("adam_weight_decay": 0.1}, "staleness": {"look_ahead": 1}})";
}

std::string staleness_advice(const OptimizerConfig& config, const Lateness& lateness) {
  if (lateness.most == 0) return "";
  const std::string name = config.type.name();
  const std::string late =
      fmt::format("gradients that are up to {} update{} late", lateness.most, lateness.most == 1 ? "" : "s");
  if (std::find(kLagging.begin(), kLagging.end(), name) != kLagging.end()) {
    return fmt::format(
        "{} lags behind synchronous runs with {}. Use Muon with optimizer.staleness.look_ahead 1 "
        "(docs/convergence.md)",
        name, late);
  }
  if (name == kBetterAhead && config.staleness.look_ahead == 0) {
    return fmt::format("{} does better with {} if optimizer.staleness.look_ahead is 1 (docs/convergence.md)",
                       name, late);
  }
  if (!lateness.of_some || lateness.mean <= kMeanLateness) return "";
  return fmt::format(
      "on the mean an update's gradients are late by up to {:.2f} updates. Smaller micro-batches make it "
      "less: "
      "with 4 per stage and update the run loses next to nothing (docs/convergence.md)",
      lateness.mean);
}

}  // namespace stagecraft
