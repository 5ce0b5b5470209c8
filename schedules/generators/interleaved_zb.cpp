// Interleaved 1F1B with split backwards: weight gradients fill what would be idle time (the loop of
// Megatron-LM, arXiv 2104.04473, section 2.2, with the split of Qi et al., "Zero Bubble Pipeline
// Parallelism", arXiv 2401.10241, section 2). Every rank keeps at most p micro-batches' share, from the
// forward to the weight gradient, of every stage.

#include "schedules/generators/list_scheduler.h"
#include "schedules/generators/looped.h"

#include <algorithm>
#include <utility>

namespace stagecraft {
namespace {

/// Interleaved 1F1B's order, each rank with one way round the ranks less ahead: forward and input gradient in
/// turn, weight gradients as late as `capacity` allows.
Orders split_interleaved(const ProgramHeader& header, const VirtualStages& shape, int capacity) {
  Orders orders(static_cast<std::size_t>(header.placement.world()));
  for (int replica = 0; replica < shape.width; ++replica) {
    const int count = std::max(0, (header.micro_batches() - replica + shape.width - 1) / shape.width);
    std::vector<int> rounds(static_cast<std::size_t>(count / shape.ranks), shape.ranks);
    if (count % shape.ranks > 0) rounds.push_back(count % shape.ranks);
    const LoopedOrder order = looped_order(rounds, shape.virtual_stages);
    const int total = static_cast<int>(order.chunk.size());
    for (int position = 0; position < shape.ranks; ++position) {
      const Rank rank =
          header.placement.ranks[static_cast<std::size_t>(position)][static_cast<std::size_t>(replica)];
      const auto add = [&](Op op, int k) {
        if (k < 0 || k >= total) return;
        const auto at = static_cast<std::size_t>(k);
        const int chunk = op == Op::forward ? order.chunk[at] : shape.virtual_stages - 1 - order.chunk[at];
        orders[rank.index()].push_back(
            {op, shape.stage(position, chunk), MicroBatch{replica + order.micro_batch[at] * shape.width}});
      };
      const int ahead = (shape.virtual_stages - 1) * shape.ranks + shape.ranks - 1 - position;
      const int put_off = capacity - 1 - ahead;
      for (int k = 0; k < ahead; ++k) add(Op::forward, k);
      for (int k = 0; k < total + put_off; ++k) {
        add(Op::forward, k + ahead);
        add(Op::backward_input, k);
        add(Op::backward_weight, k - put_off);
      }
    }
  }
  return orders;
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
