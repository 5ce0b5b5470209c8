#pragma once

// What `simulate` finds out about one schedule: every rank's times, with and without links, where they go,
// and how much they vary.

#include "base/json.h"
#include "cli/input_program.h"
#include "schedules/pictures/panel.h"
#include "schedules/simulator/simulator.h"

#include <optional>
#include <string>
#include <vector>

namespace stagecraft::cli {

struct PriceRequest {
  std::optional<int> steps;  ///< absent: one, or for an asynchronous schedule until it is steady
  Jitter jitter{.samples = 0};
  bool draws = false;  ///< the panel is wanted
};

/// A simulation of all steps asked for.
struct SimulationReport {
  Simulation simulation;
  Simulation free_links;
  std::vector<LostTime> lost;    ///< a rank
  std::vector<Seconds> samples;  ///< makespans with jitter, ascending; empty unless asked for
  Panel panel;                   ///< empty unless somebody draws it
  int steps = 1;
  /// What a further step adds; absent for an asynchronous segment from a file without a plan.
  std::optional<Seconds> steady_step;
};

/// Throws RefusedError for a program that cannot be proved safe, memory apart; InputError where times are to
/// vary and nothing says how much.
[[nodiscard]] SimulationReport price(const InputProgram& input, const PriceRequest& request);

/// The tables, which follow the headline and the picture.
[[nodiscard]] std::string priced_text(const InputProgram& input, const SimulationReport& priced);
[[nodiscard]] Json priced_json(const InputProgram& input, const SimulationReport& priced);

}  // namespace stagecraft::cli
