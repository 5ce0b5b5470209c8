#pragma once

// Of a layout with equally wide stages the program of one pipeline, to be simulated in place of the whole.
//
// Micro-batches go round-robin, so with w replicas of every stage the k-th replicas of all of them are a
// pipeline of their own, with every w-th micro-batch; pipelines meet in all-reduces, the norm's agreement and
// the report of losses only. The schedule's program for one device per stage and ceil(m / w) micro-batches is
// the list of each rank of the busiest pipelines (held to it by a test, for every synchronous schedule), with
// reductions among all replicas put in.
//
// What is simulated is a part of what the whole program needs: its step is never longer than the whole's, and
// its critical paths are bounds of the whole's. It is the same where all pipelines have the same links,
// devices of the same speed and no shared links, and the whole's losses are in before its last gradients. So
// p ranks and m / w micro-batches are paid for instead of p w ranks and m.

#include "schedules/generators/schedule.h"
#include "schedules/simulator/simulator.h"

#include <vector>

namespace stagecraft::planning {

/// The part of an equally wide layout's program that its slowest pipeline is, of those with most
/// micro-batches.
struct ReplicaPart {
  ScheduleProgram program;
  PartOf part;
};
/// `request` is the whole's, and has_equal_pipelines() of its placement.
[[nodiscard]] ReplicaPart replica_part(const Schedule& schedule, const ScheduleRequest& request,
                                       const Network& network, const std::vector<double>& speed);

/// The part's critical path with the whole's ranks.
void as_whole(CriticalPath& path, const PartOf& part);
/// The part's program as the checker takes it: one replica has nothing to reduce. Memory is the same.
[[nodiscard]] LoweredProgram without_reductions(LoweredProgram program);

}  // namespace stagecraft::planning
