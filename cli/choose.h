#pragma once

// Plans of several schedules and micro-batch sizes, and `compare --pareto`: time against memory.

#include "cli/planning.h"
#include "partitioner/advice/choices.h"

#include <string>

namespace stagecraft::cli {

struct ChooseOptions {
  bool pareto = false;  ///< the front instead of the best of each schedule
  std::string svg;      ///< a picture of the front; empty: none
  PlanOutput output{};  ///< its jitter is of the first plans shown; its choose_by decides which is written
};

/// Plans all, writes the best plan if a path is given, and prints what there is to choose from. Plans
/// beyond the limits of `machine` are left out. Throws what choose() throws, and RefusedError where none is
/// left.
void choose_from(const Profile& profile, const Cluster& cluster, const ChoiceRequest& request,
                 const ChooseOptions& options, const std::vector<MemoryLimit>& machine);

}  // namespace stagecraft::cli
