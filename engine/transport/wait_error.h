#pragma once

// How every transport words a wait that failed, so that people can compare the ranks' messages.

#include "engine/transport/signs.h"
#include "schedules/program/action.h"

#include <string>

namespace stagecraft::transport {

/// "rank 1: send of activation 3 from stage 1 to stage 2 to rank 2, begun 305.0 s ago, is not complete after
/// 300.0 s of waiting (comms.timeout_s); ..." `why`: the bound is what it is. `signs` may be null.
[[nodiscard]] std::string timed_out(Rank rank, const std::string& what, Seconds age, Seconds bound,
                                    const std::string& why, const Signs* signs);
/// The key of run.json that bounds waits in this phase.
[[nodiscard]] std::string bound_key(Phase phase);
/// "rank 1: gave up receive of ... from rank 0: rank 2 failed: ..."
[[nodiscard]] std::string gave_up(Rank rank, const std::string& what, Rank failed, const std::string& reason);
/// The same about a rank that cannot say a reason: it is silent, for longer than `why` allows, or gone.
[[nodiscard]] std::string gave_up_silent(Rank rank, const std::string& what, Rank silent, const Sign& sign,
                                         const std::string& why = "");
/// "; rank 2 has not been heard of for 299 s", "; rank 0 is alive and saves". About those first of whom
/// nothing is heard, else about those that work while the others wait. "" where nothing is known.
[[nodiscard]] std::string describe_others(Rank rank, const Signs* signs);
/// "send of activation 3 from stage 1 to rank 2" / "receive of ... from rank 0".
[[nodiscard]] std::string name_transfer(bool send, const Tag& tag, Rank peer);

}  // namespace stagecraft::transport
