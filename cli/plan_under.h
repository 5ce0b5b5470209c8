#pragma once

// One plan under other schedules, side by side: its stages stay.

#include "base/json.h"
#include "cli/input_program.h"
#include "cli/schedule_option.h"
#include "schedules/pictures/panel.h"

#include <cstdint>
#include <string>
#include <vector>

namespace stagecraft::cli {

/// The plan under one schedule. Of an asynchronous one, times are of a step once steady, unless steps were
/// asked for.
struct Compared {
  std::string schedule;
  std::string refused;  ///< why it cannot take the plan; nothing else is filled in then
  bool steady = false;  ///< `time` is what one more step adds to a full pipeline
  Seconds time;         ///< of a step, or of the steps asked for
  double bubble = 0;
  Rank worst;  ///< the rank with the highest peak
  Bytes peak;
  bool fits = true;           ///< into the plan's capacity
  std::int64_t messages = 0;  ///< a step
  Bytes sent;                 ///< a step
  int versions = 1;           ///< most of a stage's weights alive at once
  Panel panel;                ///< only when it is drawn
};

struct Comparison {
  std::vector<Compared> schedules;
  int steps = 0;  ///< that were asked for; 0: none, `time` is of one step

  [[nodiscard]] bool any() const;  ///< whether some schedule could take the plan
};

struct PlanUnder {
  std::string path;
  std::vector<ScheduleAsked> schedules;
  InputRequest request{};
  bool unit_costs = false;  ///< instead of the plan's
  std::string svg{};        ///< where a picture goes; empty: nowhere
  bool as_json = false;
};

/// Simulates the plan under each schedule and prints the table; draws it where that is asked for. Throws
/// InputError for a file that is no plan or has no costs, RefusedError where no schedule can take the plan.
void compare_under(const PlanUnder& asked);

[[nodiscard]] std::string comparison_text(const InputProgram& input, const Comparison& comparison);
[[nodiscard]] Json comparison_json(const InputProgram& input, const Comparison& comparison);

}  // namespace stagecraft::cli
