#pragma once

// A searched schedule's plan on a layout: cuts, then an order for them, then cuts for that order.

#include "partitioner/search/planning_run.h"

#include <vector>

namespace stagecraft::planning {

/// The plan with the best order found, or why there is none. What it takes goes off the run's budget.
[[nodiscard]] PlanMaker::Balanced search_orders(PlanningRun& run, const Layout& layout);

/// Behind the layouts with one device per stage: those with replicas, as far as a schedule comes near the best plan with
/// them, the likeliest first. What is found goes to `run`.
void search_orders_of_replicas(PlanningRun& run, std::vector<Layout> layouts);

/// Behind all layouts: with the work that is left, cuts for the schedules that came nearest to the best plan, or made it.
void search_others_further(PlanningRun& run);

}  // namespace stagecraft::planning
