#include "engine/transport/wait_error.h"

#include <fmt/format.h>

namespace stagecraft::transport {

std::string timed_out(Rank rank, const std::string& what, Seconds age, Seconds timeout) {
  return fmt::format(
      "rank {}: {}, begun {:.1f} s ago, is not complete after {:.1f} s of waiting; the other rank hangs, "
      "died, "
      "or is slower than the timeout allows",
      rank.value, what, age.value, timeout.value);
}

std::string gave_up(Rank rank, const std::string& what, Rank failed, const std::string& reason) {
  return fmt::format("rank {}: gave up {}: rank {} failed: {}", rank.value, what, failed.value, reason);
}

std::string name_transfer(bool send, const Tag& tag, Rank peer) {
  return fmt::format("{} of {} {} rank {}", send ? "send" : "receive", describe_tag(tag),
                     send ? "to" : "from", peer.value);
}

}  // namespace stagecraft::transport
