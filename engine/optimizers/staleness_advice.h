#pragma once

// What is known of optimizers under asynchronous schedules, from the measurements of docs/convergence.md.

#include "engine/optimizers/optimizer_config.h"

#include <string>

namespace stagecraft {

/// What did best under asynchronous schedules, as a config's `optimizer`: Muon, written ahead.
[[nodiscard]] const char* asynchronous_optimizer();

/// How late a run's gradients are, in updates.
struct Lateness {
  int most = 0;
  double mean = 0;  ///< over the micro-batches of an update, on the stage where it is largest
  /// Only some of an update's micro-batches are late: the more an update has, the smaller the mean.
  bool of_some = false;
};

/// What to change in a run with such gradients, where its optimizer or its micro-batches are known to make it
/// fall behind synchronous ones: a sentence or two. Empty where they are not.
[[nodiscard]] std::string staleness_advice(const OptimizerConfig& config, const Lateness& late);

}  // namespace stagecraft
