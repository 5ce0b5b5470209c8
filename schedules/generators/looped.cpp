#include "schedules/generators/looped.h"

#include <algorithm>
#include <utility>

namespace stagecraft {

void LoopedRank::add(Op op, int k) {
  if (k < 0 || k >= total()) return;
  const Turn& turn = turns[to_size(k)];
  const int chunk = op == Op::forward ? turn.chunk : shape.virtual_stages - 1 - turn.chunk;
  list.push_back({op, shape.stage(position, chunk), MicroBatch{replica + turn.micro_batch * shape.replicas}});
}

Orders looped_orders(const ProgramHeader& header, const VirtualStages& shape, const DivideRounds& rounds,
                     const std::function<void(LoopedRank&)>& fill) {
  Orders orders(to_size(header.placement.world()));
  for (int replica = 0; replica < shape.replicas; ++replica) {
    const int count = own_count(header.micro_batches(), replica, shape.replicas);
    const std::vector<int> divided = rounds(count, shape.ranks);
    std::vector<Turn> turns;
    int first = 0;
    for (const int round : divided) {
      for (int chunk = 0; chunk < shape.virtual_stages; ++chunk) {
        for (int i = 0; i < round; ++i) turns.push_back({chunk, first + i});
      }
      first += round;
    }
    for (int position = 0; position < shape.ranks; ++position) {
      const Rank rank = header.placement.ranks[to_size(position)][to_size(replica)];
      LoopedRank looped{shape, turns, divided, position, replica, orders[rank.index()]};
      fill(looped);
    }
  }
  return orders;
}

ScheduleProgram looped_program(const std::string& schedule, const ScheduleRequest& request,
                               const DivideRounds& rounds, const std::function<void(LoopedRank&)>& fill) {
  ProgramHeader header = training_header(schedule, request);
  const VirtualStages shape = virtual_stages(header.placement, PlacementKind::loop, schedule);
  const Orders orders = looped_orders(header, shape, rounds, fill);
  return synchronous_program(std::move(header), orders, request.clip);
}

std::vector<int> rounds_of(int count, int ranks) {
  if (count == 0) return {};
  const int rounds = std::max(1, count / ranks);
  std::vector<int> sizes(to_size(rounds), count / rounds);
  for (int i = 0; i < count % rounds; ++i) ++sizes[to_size(i)];
  return sizes;
}

}  // namespace stagecraft
