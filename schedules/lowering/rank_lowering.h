#pragma once

// The last step of lowering: slots and waits laid over one rank's list, once it is known how many slots each
// channel has (lowering.h says where everything goes).

#include "schedules/lowering/posting_order.h"
#include "schedules/lowering/receives.h"
#include "schedules/program/program.h"

#include <cstdint>
#include <span>
#include <vector>

namespace stagecraft {

struct LoweredRank {
  std::vector<Action> actions;
  std::vector<SlotInfo> slots;
};

/// `transfers` and `order` are of `list`; `slots` of each channel. No receive is read before it can be posted
/// (posted_too_late).
[[nodiscard]] LoweredRank lower_rank(std::span<const Action> list, const TagNumbers& numbers,
                                     const RankTransfers& transfers, const PostOrder& order,
                                     const std::vector<std::int32_t>& slots, int sends_in_flight);

}  // namespace stagecraft
