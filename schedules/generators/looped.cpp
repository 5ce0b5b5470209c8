#include "stagecraft/schedules/generators/looped.h"

#include <algorithm>

namespace stagecraft {

LoopedOrder looped_order(const std::vector<int>& rounds, int virtual_stages) {
  LoopedOrder order;
  int first = 0;
  for (const int round : rounds) {
    for (int chunk = 0; chunk < virtual_stages; ++chunk) {
      for (int i = 0; i < round; ++i) {
        order.chunk.push_back(chunk);
        order.micro_batch.push_back(first + i);
      }
    }
    first += round;
  }
  return order;
}

void LoopedRank::add(Op op, int k) {
  if (k < 0 || k >= total()) return;
  const auto at = static_cast<std::size_t>(k);
  const int chunk = op == Op::forward ? order.chunk[at] : shape.virtual_stages - 1 - order.chunk[at];
  list.push_back(
      {op, shape.stage(position, chunk), MicroBatch{replica + order.micro_batch[at] * shape.width}});
}

std::vector<std::vector<Compute>> looped_orders(const ProgramHeader& header, const VirtualStages& shape,
                                                const std::function<std::vector<int>(int count)>& rounds,
                                                const std::function<void(LoopedRank&)>& fill) {
  std::vector<std::vector<Compute>> orders(static_cast<std::size_t>(header.placement.world()));
  for (int replica = 0; replica < shape.width; ++replica) {
    const std::vector<int> divided = rounds(own_count(header.micro_batches(), replica, shape.width));
    const LoopedOrder order = looped_order(divided, shape.virtual_stages);
    for (int position = 0; position < shape.ranks; ++position) {
      const Rank rank =
          header.placement.ranks[static_cast<std::size_t>(position)][static_cast<std::size_t>(replica)];
      LoopedRank looped{shape, order, divided, position, replica, orders[rank.index()]};
      fill(looped);
    }
  }
  return orders;
}

std::vector<int> rounds_of(int count, int ranks) {
  if (count == 0) return {};
  const int rounds = std::max(1, count / ranks);
  std::vector<int> sizes(static_cast<std::size_t>(rounds), count / rounds);
  for (int i = 0; i < count % rounds; ++i) ++sizes[static_cast<std::size_t>(i)];
  return sizes;
}

}  // namespace stagecraft
