#pragma once

// The search over layouts by simulated step: best first by what no layout can be below. Whatever cannot beat
// the best plan so far is left alone.

#include "stagecraft/partitioner/planning/planning_run.h"

#include <vector>

namespace stagecraft::planning {

/// Goes over the layouts with one device per stage and the wide ones. The candidates of `run` seed the search, and
/// what is found goes there; the proof is there where cuts were searched for and something fits.
[[nodiscard]] std::optional<StepProof> search_layouts(PlanningRun& run, const std::vector<Layout>& plain,
                                                      const Layouts& wide);

}  // namespace stagecraft::planning
