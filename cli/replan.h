#pragma once

// `plan --replan RUN_DIR`: whether another plan would pay, now that a run has measured its stages.

#include "stagecraft/cli/plan.h"
#include "stagecraft/partitioner/replan.h"

#include <string>

namespace stagecraft::cli {

struct ReplanOptions {
  std::string run_dir;
  std::string profile;
  std::string cluster;
  Attribution blame = Attribution::devices;  ///< whose plan is written
  Seconds switch_cost{60};                   ///< of stopping at a checkpoint and starting again
  SearchBudget search{};
  PlanOutput output;
};

/// Reads the run, asks both ways, prints the answer, writes the plan of `blame` if a path is given.
void replan(const ReplanOptions& options);

}  // namespace stagecraft::cli
