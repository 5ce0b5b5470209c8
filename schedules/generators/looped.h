#pragma once

// Schedules over virtual stages that send micro-batches round the loop in rounds: a rank takes a round's
// micro-batches through its first stage, then through its second, and so on; backwards the other way round.

#include "stagecraft/schedules/generators/assembly.h"

#include <functional>
#include <vector>

namespace stagecraft {

/// Which stage and own micro-batch come k-th on a rank, for its forwards; its backwards go through the stages
/// from the last.
struct LoopedOrder {
  std::vector<int> chunk;        ///< of the k-th forward; of the k-th backward virtual_stages - 1 - chunk[k]
  std::vector<int> micro_batch;  ///< own, counted from 0
};

/// `rounds` are the micro-batches of each round.
[[nodiscard]] LoopedOrder looped_order(const std::vector<int>& rounds, int virtual_stages);

/// One rank's list, to be filled.
struct LoopedRank {
  const VirtualStages& shape;
  const LoopedOrder& order;
  const std::vector<int>& rounds;
  int position;
  int replica;
  std::vector<Compute>& list;

  /// Forwards on the rank, and as many backwards.
  [[nodiscard]] int total() const { return static_cast<int>(order.chunk.size()); }
  /// The k-th forward, backward or part of one; nothing where there is no k-th.
  void add(Op op, int k);
};

/// Lets `fill` say the order of every rank of the loop. `rounds` divides a replica's micro-batches.
[[nodiscard]] std::vector<std::vector<Compute>> looped_orders(
    const ProgramHeader& header, const VirtualStages& shape,
    const std::function<std::vector<int>(int count)>& rounds, const std::function<void(LoopedRank&)>& fill);

/// `count` micro-batches in rounds of at least `ranks` (fewer only where there are fewer), as equal as can
/// be, longer ones first: no later round then waits for an earlier one's backwards.
[[nodiscard]] std::vector<int> rounds_of(int count, int ranks);

}  // namespace stagecraft
