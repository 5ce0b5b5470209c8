#pragma once

// How every transport words a wait that failed, so that people can compare the ranks' messages.

#include "schedules/action.h"

#include <string>

namespace stagecraft::transport {

/// "rank 1: send of activation 3 from stage 1 to stage 2 to rank 2, begun 305.0 s ago, is not complete after
/// 300.0 s of waiting; ..."
[[nodiscard]] std::string timed_out(Rank rank, const std::string& what, Seconds age, Seconds timeout);
/// "rank 1: gave up receive of ... from rank 0: rank 2 failed: ..."
[[nodiscard]] std::string gave_up(Rank rank, const std::string& what, Rank failed, const std::string& reason);
/// "send of activation 3 from stage 1 to rank 2" / "receive of ... from rank 0".
[[nodiscard]] std::string name_transfer(bool send, const Tag& tag, Rank peer);

}  // namespace stagecraft::transport
