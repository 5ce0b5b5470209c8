// Interleaved 1F1B with split backwards: weight gradients fill what would be idle time (the loop of
// Megatron-LM, arXiv 2104.04473, section 2.2, with the split of Qi et al., "Zero Bubble Pipeline
// Parallelism", arXiv 2401.10241, section 2). Every rank keeps at most p micro-batches' share, from the
// forward to the weight gradient, of every stage.

#include "schedules/generators/looped.h"
#include "schedules/generators/registry.h"
#include "schedules/list_scheduling/list_scheduler.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace stagecraft {
namespace {

using Rounds = std::vector<int>;

/// `count` micro-batches in rounds of `ranks`, and what is left over: as the last round first of all; then in
/// other places, and shared with a neighbouring round. Which is best depends on the times.
std::vector<Rounds> ways_to_divide(int count, int ranks) {
  const Rounds whole(to_size(count / ranks), ranks);
  const int left = count % ranks;
  if (left == 0) return {whole};
  std::vector<Rounds> ways;
  const auto add = [&](Rounds way, std::size_t place, int size) {
    way.insert(way.begin() + static_cast<std::ptrdiff_t>(place), size);
    if (std::find(ways.begin(), ways.end(), way) == ways.end()) ways.push_back(std::move(way));
  };
  add(whole, whole.size(), left);
  if (whole.empty()) return ways;
  for (const std::size_t place : {std::size_t{0}, std::size_t{1}, whole.size() - 1}) add(whole, place, left);
  for (const std::size_t place : {std::size_t{0}, whole.size() - 1}) {
    Rounds shared = whole;
    shared[place] = (ranks + left + 1) / 2;
    add(shared, place + 1, (ranks + left) / 2);
  }
  return ways;
}

/// Interleaved 1F1B's order, each rank with one way round the ranks less ahead: forward and input gradient in
/// turn, weight gradients as late as `capacity` allows.
Orders split_interleaved(const ProgramHeader& header, const VirtualStages& shape, int capacity,
                         std::size_t way) {
  const auto rounds = [&](int count, int ranks) {
    const std::vector<Rounds> ways = ways_to_divide(count, ranks);
    return ways[std::min(way, ways.size() - 1)];  // replicas may have fewer micro-batches, and ways
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

Orders interleaved_zb_orders(const ScheduleRequest& request) {
  const ProgramHeader header = training_header("interleaved_zb", request);
  const VirtualStages shape = virtual_stages(header.placement, PlacementKind::loop, "interleaved_zb");
  const int capacity = shape.ranks * shape.virtual_stages;
  std::vector<Orders> seeds;
  const std::size_t ways =
      ways_to_divide(own_count(header.micro_batches(), 0, shape.replicas), shape.ranks).size();
  for (std::size_t way = 0; way < ways; ++way)
    seeds.push_back(split_interleaved(header, shape, capacity, way));
  return best_orders(workload_request(request), stage_limit(header.placement, capacity), std::move(seeds));
}

}  // namespace

Schedule interleaved_zb_schedule() {
  return {.name = "interleaved_zb",
          .summary = "interleaved 1F1B with weight gradients put off",
          .paper = "Zero Bubble Pipeline Parallelism, arXiv 2401.10241",

          .placement = PlacementKind::loop,
          .virtual_stages = 2,
          .orders_by_time = true,
          .build = [](const ScheduleRequest& request) {
            return program_by_time("interleaved_zb", request, interleaved_zb_orders);
          }};
}

}  // namespace stagecraft
