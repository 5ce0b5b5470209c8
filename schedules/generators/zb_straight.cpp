#include "stagecraft/schedules/generators/zb_straight.h"

#include <algorithm>
#include <utility>

namespace stagecraft {
namespace {

/// The paper's order for equal times: `turns` times as many forwards ahead as 1F1B has, then a forward and an
/// input gradient in turn, and weight gradients as late as a stage's capacity allows. Nothing where ranks
/// hold several stages.
std::vector<Orders> by_the_paper(const ProgramHeader& header, const std::vector<int>& capacity, int turns) {
  Orders orders(static_cast<std::size_t>(header.placement.world()));
  for (int s = 0; s < header.placement.stages(); ++s) {
    const StageId stage{s};
    const int width = header.placement.width(stage);
    const int ahead = turns * warm_up_depth(header.placement, stage);
    const int put_off = capacity[stage.index()] - 1 - ahead;
    for (int replica = 0; replica < width; ++replica) {
      auto& order = orders[header.placement.ranks[stage.index()][static_cast<std::size_t>(replica)].index()];
      if (!order.empty()) return {};
      const int count = std::max(0, (header.micro_batches() - replica + width - 1) / width);
      const auto add = [&](Op op, int k) {
        if (k >= 0 && k < count) order.push_back({op, stage, MicroBatch{replica + k * width}});
      };
      for (int k = 0; k < ahead; ++k) add(Op::forward, k);
      for (int k = 0; k < count + put_off; ++k) {
        add(Op::forward, k + ahead);
        add(Op::backward_input, k);
        add(Op::backward_weight, k - put_off);
      }
    }
  }
  return {std::move(orders)};
}

}  // namespace

ScheduleProgram zb_straight(const char* schedule, const ScheduleRequest& request, int turns) {
  ProgramHeader header = training_header(schedule, request);
  const Placement& placement = header.placement;
  int ranks = 0;  // a rank that holds two stages counts twice, as in warm_up_depth
  for (const auto& replicas : placement.ranks) ranks += static_cast<int>(replicas.size());
  std::vector<int> capacity;  // of a stage
  MemoryLimit limit = stage_limit(placement, 0);
  limit.capacity.assign(limit.capacity.size(), 0);
  for (const auto& replicas : placement.ranks) {
    capacity.push_back(turns * ((ranks - 1) / static_cast<int>(replicas.size())) + 1);
    for (const Rank rank : replicas) limit.capacity[rank.index()] += capacity.back();
  }
  const Orders orders = best_orders(workload_request(request), limit, by_the_paper(header, capacity, turns));
  return synchronous_program(std::move(header), orders, request.clip);
}

}  // namespace stagecraft
