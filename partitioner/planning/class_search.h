#pragma once

// The search over equally wide layouts, one stage per device, where there are too many to look at each: by
// classes. A class is a number of stages and of micro-batches on the busiest replica, with every number of replicas that
// comes to the same and every block. Best first by what is known of each:
//   1. of a class, what any order takes at least (equal_stages.h);
//   2. what the schedule's order takes;
//   3. of each of its layouts, with the links and all-reduces of where it lies; the cuts that come out are
//      simulated, by one of the layout's pipelines (replica_part.h);
//   4. the search over its cuts (cut_search.h), a longer one each time round.
// Whatever is not below the best step is done with. What remains when time is up bounds the best from below.

#include "stagecraft/partitioner/planning/planning_run.h"

namespace stagecraft::planning {

/// The best plans go to `run`.
[[nodiscard]] StepProof search_classes(PlanningRun& run);

}  // namespace stagecraft::planning
