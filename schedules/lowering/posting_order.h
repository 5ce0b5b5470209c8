#pragma once

// When a rank posts each of its receives, given the slots of its channels: as early as a slot of the channel
// is free, and, where a transport has no tags, not before the receives of what its peer sends earlier on the
// same channel. Both depend on the rank's own list only, so a plan is known without running anything.

#include "schedules/lowering/receives.h"
#include "schedules/lowering/transfer_script.h"
#include "schedules/rules/transport_rules.h"

#include <cstdint>
#include <vector>

namespace stagecraft {

/// By rank and channel (RankTransfers::channels).
using SlotCounts = std::vector<std::vector<std::int32_t>>;

/// The order in which a rank's receives are posted as far as slots allow. Empty: as they are read first.
struct PostOrder {
  std::vector<std::int32_t> sequence;  ///< all receives
  std::vector<std::int32_t> previous;  ///< per receive: posted before it on its transport channel; -1: none

  [[nodiscard]] std::int32_t at(std::size_t place) const {
    return sequence.empty() ? static_cast<std::int32_t>(place) : sequence[place];
  }
};

/// Per rank. By first reader; without tags each transport channel's receives stand in the order of its sends.
[[nodiscard]] std::vector<PostOrder> post_orders(const TransferScript& script, const TransportRules& rules);

/// Per receive of a rank: how many of the rank's releases come before its post. `slots`: of each channel.
[[nodiscard]] std::vector<std::int32_t> post_plan(const RankTransfers& rank, const PostOrder& order,
                                                  std::vector<std::int32_t> slots);

/// A receive that is read before it is posted; -1 when there is none.
[[nodiscard]] std::int32_t posted_too_late(const RankTransfers& rank, const std::vector<std::int32_t>& plan);

}  // namespace stagecraft
