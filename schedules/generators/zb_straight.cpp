// The zero-bubble schedules of a straight pipeline. They differ in how many micro-batches a rank may keep.

#include "schedules/generators/assembly.h"
#include "schedules/generators/registry.h"

#include <utility>

namespace stagecraft {
namespace {

/// The paper's order for equal times: `turns` times as many forwards ahead as 1F1B has, then a forward and an
/// input gradient in turn, and weight gradients as late as a stage's capacity allows. Nothing where ranks
/// hold several stages.
std::vector<Orders> by_the_paper(const ProgramHeader& header, const std::vector<int>& capacity, int turns) {
  Orders orders(to_size(header.placement.world()));
  for (const StageReplica& at : stage_replicas(header.placement, header.micro_batches())) {
    auto& order = orders[at.rank.index()];
    if (!order.empty()) return {};
    const int ahead = turns * warm_up_depth(header.placement, at.stage);
    const int put_off = capacity[at.stage.index()] - 1 - ahead;
    const auto add = [&](Op op, int k) {
      if (k >= 0 && k < at.count) order.push_back({op, at.stage, at.micro_batch(k)});
    };
    for (int k = 0; k < ahead; ++k) add(Op::forward, k);
    for (int k = 0; k < at.count + put_off; ++k) {
      add(Op::forward, k + ahead);
      add(Op::backward_input, k);
      add(Op::backward_weight, k - put_off);
    }
  }
  return {std::move(orders)};
}

/// Ordered by the request's costs; a replica of a stage with w of them keeps, of P ranks, at most
/// `turns` * floor((P - 1) / w) + 1 micro-batches from their forward to their weight gradient.
Orders zb_orders(const char* schedule, const ScheduleRequest& request, int turns) {
  const ProgramHeader header = training_header(schedule, request);
  const Placement& placement = header.placement;
  int ranks = 0;  // a rank that holds two stages counts twice, as in warm_up_depth
  for (const auto& replicas : placement.ranks) ranks += static_cast<int>(replicas.size());
  std::vector<int> capacity;  // of a stage
  KeepLimit limit = stage_limit(placement, 0);
  limit.capacity.assign(limit.capacity.size(), 0);
  for (const auto& replicas : placement.ranks) {
    capacity.push_back(turns * ((ranks - 1) / static_cast<int>(replicas.size())) + 1);
    for (const Rank rank : replicas) limit.capacity[rank.index()] += capacity.back();
  }
  return best_orders(workload_request(request), limit, by_the_paper(header, capacity, turns));
}

Schedule zb_schedule(const char* name, const char* summary, int turns) {
  return {.name = name,
          .summary = summary,
          .paper = "Zero Bubble Pipeline Parallelism, arXiv 2401.10241",
          .orders_by_time = true,
          .build = [=](const ScheduleRequest& request) {
            return program_by_time(name, request,
                                   [&](const ScheduleRequest& one) { return zb_orders(name, one, turns); });
          }};
}

}  // namespace

/// Zero bubble in 1F1B's memory: a backward is split, the half that the previous stage waits for goes first,
/// and the weight half fills what would be idle time (Qi et al., "Zero Bubble Pipeline Parallelism", arXiv
/// 2401.10241, section 2: ZB-H1). No rank keeps more micro-batches, from their forward to their weight
/// gradient, than 1F1B's first rank does. The paper draws the order for equal times; here list scheduling
/// makes it from the true ones.
Schedule zb_h1_schedule() {
  return zb_schedule(
      "zb_h1",
      "1F1B with weight gradients put off: less bubble, in the same memory where stages take equal times", 1);
}

/// Zero bubble in twice 1F1B's memory: enough forwards ahead that a rank never waits between its first and its
/// last action, where the parts of a micro-batch take equal times (Qi et al., "Zero Bubble Pipeline
/// Parallelism", arXiv 2401.10241, section 2: ZB-H2). A rank that starts later ends later: it is worth its
/// memory only where nothing, such as clipping by the global norm, makes the ranks meet at the step.
Schedule zb_h2_schedule() {
  return zb_schedule("zb_h2", "no idle time between first and last action, in twice the memory", 2);
}

}  // namespace stagecraft
