#pragma once

// Schedules over virtual stages that send micro-batches round the loop in rounds: a rank takes a round's
// micro-batches through its first stage, then through its second, and so on; backwards the other way round.

#include "schedules/generators/assembly.h"

namespace stagecraft {

/// Which stage and own micro-batch come k-th on a rank, for its forwards; its backwards go through the stages
/// from the last.
struct LoopedOrder {
  std::vector<int> chunk;        ///< of the k-th forward; of the k-th backward virtual_stages - 1 - chunk[k]
  std::vector<int> micro_batch;  ///< own, counted from 0
};

/// `rounds` are the micro-batches of each round.
[[nodiscard]] LoopedOrder looped_order(const std::vector<int>& rounds, int virtual_stages);

/// `count` micro-batches in rounds of at least `ranks` (fewer only where there are fewer), as equal as can
/// be, longer ones first: no later round then waits for an earlier one's backwards.
[[nodiscard]] std::vector<int> rounds_of(int count, int ranks);

}  // namespace stagecraft
