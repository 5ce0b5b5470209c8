#pragma once

// What is known of optimizers under asynchronous schedules, from the measurements of docs/convergence.md.

#include "stagecraft/engine/optimizers/optimizer_config.h"

#include <string>

namespace stagecraft {

/// That of an asynchronous run whose config has none: Muon, written ahead.
[[nodiscard]] OptimizerConfig asynchronous_optimizer();

/// What to change in a run whose gradients are up to so many updates late, where its optimizer is known to fall
/// behind synchronous runs then: a sentence or two. Empty where it is not.
[[nodiscard]] std::string staleness_advice(const OptimizerConfig& config, int most_staleness);

}  // namespace stagecraft
