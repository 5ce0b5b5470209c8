// Looped breadth-first: fill-drain over virtual stages (Lamy-Poirier, "Breadth-First Pipeline Parallelism",
// arXiv 2211.05953, section 4). All micro-batches go through a rank's first stage, then all through its
// second; backwards likewise from its last. The bubble is interleaved 1F1B's; every micro-batch is kept, and
// a stage's gradients are complete early, one stage after another.

#include "schedules/generators/looped.h"
#include "schedules/generators/registry.h"

namespace stagecraft {
namespace {

ScheduleProgram build_looped_bfs(const ScheduleRequest& request) {
  const auto one_round = [](int count, int) { return std::vector<int>{count}; };
  return looped_program("looped_bfs", request, one_round, [](LoopedRank& rank) {
    for (const Op op : {Op::forward, Op::backward}) {
      for (int k = 0; k < rank.total(); ++k) rank.add(op, k);
    }
  });
}

}  // namespace

Schedule looped_bfs_schedule() {
  return {.name = "looped_bfs",
          .summary = "fill-drain over v stages per rank: 1/v of the bubble, keeps every micro-batch",
          .paper = "Breadth-First Pipeline Parallelism, arXiv 2211.05953",

          .placement = PlacementKind::loop,
          .virtual_stages = 2,
          .build = build_looped_bfs};
}

}  // namespace stagecraft
