#pragma once

// `plan` over several schedules and micro-batch sizes, and `plan --pareto`: time against memory.

#include "cli/plan.h"
#include "partitioner/choices.h"

#include <string>

namespace stagecraft::cli {

struct ChooseOptions {
  bool pareto = false;  ///< the front instead of the best of each schedule
  std::string svg;      ///< a picture of the front; empty: none
  PlanOutput output;
};

/// Plans all, writes the fastest plan if a path is given, and prints what there is to choose from.
void choose_from(const Profile& profile, const Cluster& cluster, const ChoiceRequest& request,
                 const ChooseOptions& options);

}  // namespace stagecraft::cli
