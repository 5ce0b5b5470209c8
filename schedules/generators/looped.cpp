#include "schedules/generators/looped.h"

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

std::vector<int> rounds_of(int count, int ranks) {
  if (count == 0) return {};
  const int rounds = std::max(1, count / ranks);
  std::vector<int> sizes(static_cast<std::size_t>(rounds), count / rounds);
  for (int i = 0; i < count % rounds; ++i) ++sizes[static_cast<std::size_t>(i)];
  return sizes;
}

}  // namespace stagecraft
