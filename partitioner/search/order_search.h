#pragma once

// A searched schedule's plan on a layout: cuts, then an order for them, then cuts for that order.

#include "partitioner/search/planning_run.h"

namespace stagecraft::planning {

/// The plan with the best order found, or why there is none. What it takes goes off the run's budget.
[[nodiscard]] PlanMaker::Balanced search_orders(PlanningRun& run, const Layout& layout);

/// Behind all layouts: with the work that is left, cuts for the schedules that came nearest to the best plan, or made it.
void search_others_further(PlanningRun& run);

}  // namespace stagecraft::planning
