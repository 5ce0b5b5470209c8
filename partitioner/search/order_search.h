#pragma once

// A searched schedule's plan on a layout: cuts, then an order for them, then cuts for that order.

#include "partitioner/search/planning_run.h"

#include <vector>

namespace stagecraft::planning {

/// The plan with the best order found for each layout, or why there is none, goes to `run`, and what it takes off its
/// budget. The likeliest come first; what comes near none of them is told of with even cuts. Throws InputError where
/// the only layout is not for so many micro-batches.
void search_orders(PlanningRun& run, const std::vector<Layout>& layouts);

/// Behind the layouts with one device per stage: those with replicas, as far as a schedule comes near the best plan with
/// them, the likeliest first. What is found goes to `run`.
void search_orders_of_replicas(PlanningRun& run, std::vector<Layout> layouts);

/// An order for these cuts, and cuts for it, while that helps; what is found goes to `run`.
void with_order(PlanningRun& run, const Layout& layout, std::vector<int> cuts, RecomputeSettings repeats);

/// Behind all layouts: with the work that is left, cuts for the schedules that came nearest to the best plan, or made it.
void search_others_further(PlanningRun& run);

}  // namespace stagecraft::planning
