// Interleaved 1F1B with split backwards: weight gradients fill what would be idle time (the loop of
// Megatron-LM, arXiv 2104.04473, section 2.2, with the split of Qi et al., "Zero Bubble Pipeline
// Parallelism", arXiv 2401.10241, section 2). Every rank keeps at most p micro-batches' share, from the
// forward to the weight gradient, of every stage.

#include "schedules/generators/list_scheduler.h"
#include "schedules/generators/looped.h"

#include <utility>

namespace stagecraft {
namespace {

/// Interleaved 1F1B's order, each rank with one way round the ranks less ahead: forward and input gradient in
/// turn, weight gradients as late as `capacity` allows.
Orders split_interleaved(const ProgramHeader& header, const VirtualStages& shape, int capacity) {
  const auto rounds = [&](int count) {
    std::vector<int> sizes(static_cast<std::size_t>(count / shape.ranks), shape.ranks);
    if (count % shape.ranks > 0) sizes.push_back(count % shape.ranks);
    return sizes;
  };
  return looped_orders(header, shape, rounds, [&](LoopedRank& rank) {
    const int ahead = (shape.virtual_stages - 1) * shape.ranks + shape.ranks - 1 - rank.position;
    const int put_off = capacity - 1 - ahead;
    for (int k = 0; k < ahead; ++k) rank.add(Op::forward, k);
    for (int k = 0; k < rank.total() + put_off; ++k) {
      rank.add(Op::forward, k + ahead);
      rank.add(Op::backward_input, k);
      rank.add(Op::backward_weight, k - put_off);
    }
  });
}

ScheduleProgram build(const ScheduleRequest& request) {
  ProgramHeader header = make_header("interleaved_zb", SegmentKind::train, request);
  const VirtualStages shape = virtual_stages(header.placement, PlacementKind::loop, "interleaved_zb");
  const int capacity = shape.ranks * shape.virtual_stages;
  const Orders orders = best_orders(request, stage_limit(header.placement, capacity),
                                    {split_interleaved(header, shape, capacity)});
  return synchronous_program(std::move(header), orders, request.clip);
}

}  // namespace

Schedule interleaved_zb_schedule() {
  return {.name = "interleaved_zb",
          .summary = "interleaved 1F1B with weight gradients put off",
          .paper = "Zero Bubble Pipeline Parallelism, arXiv 2401.10241",
          .synchronous = true,
          .placement = PlacementKind::loop,
          .virtual_stages = 2,
          .orders_by_time = true,
          .build = build};
}

}  // namespace stagecraft
