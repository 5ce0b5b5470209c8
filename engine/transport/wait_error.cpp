#include "engine/transport/wait_error.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

namespace stagecraft::transport {
namespace {

const char* work_of(Phase phase) {
  switch (phase) {
    case Phase::start_up:
      return "starts up";
    case Phase::step:
      return "works on a step";
    case Phase::save:
      return "saves";
    case Phase::spare:
      return "waits as a spare";
  }
  return "";
}

std::string describe(Rank rank, const Sign& sign) {
  switch (sign.life) {
    case Sign::Life::gone:
      return fmt::format("the process of rank {} has ended", rank.value);
    case Sign::Life::silent:
      return fmt::format("rank {} has not been heard of for {:.0f} s", rank.value, sign.silence.value);
    default:
      return fmt::format("rank {} is alive and {}", rank.value, work_of(sign.phase));
  }
}

}  // namespace

std::string bound_key(Phase phase) {
  switch (phase) {
    case Phase::start_up:
      return "comms.start_up_timeout_s";
    case Phase::step:
      return "comms.timeout_s";
    case Phase::save:
      return "comms.save_timeout_s";
    case Phase::spare:
      break;  // it has no bound
  }
  return "";
}

std::string timed_out(Rank rank, const std::string& what, Seconds age, Seconds bound, const std::string& why,
                      const Signs* signs) {
  const std::string others = describe_others(rank, signs);
  return fmt::format("rank {}: {}, begun {:.1f} s ago, is not complete after {:.1f} s of waiting ({}){}",
                     rank.value, what, age.value, bound.value, why,
                     others.empty() ? "; the other rank hangs, died, or is slower than that allows" : others);
}

std::string gave_up(Rank rank, const std::string& what, Rank failed, const std::string& reason) {
  return fmt::format("rank {}: gave up {}: rank {} failed: {}", rank.value, what, failed.value, reason);
}

std::string gave_up_silent(Rank rank, const std::string& what, Rank silent, const Sign& sign,
                           const std::string& why) {
  const std::string more = sign.life == Sign::Life::gone
                               ? "without a word: it was killed or crashed, see its machine's log"
                               : fmt::format("({}): it is stopped, or its machine is down or cut off", why);
  return fmt::format("rank {}: gave up {}: {} {}", rank.value, what, describe(silent, sign), more);
}

std::string describe_others(Rank rank, const Signs* signs) {
  if (signs == nullptr) return "";
  constexpr std::size_t kMost = 3;
  std::vector<std::string> missing, working;
  bool all_known = true;
  for (int r = 0; r < signs->world(); ++r) {
    if (r == rank.value) continue;
    const Sign sign = signs->of(Rank{r});
    const bool alive = sign.life == Sign::Life::alive;
    if (sign.life == Sign::Life::unknown) all_known = false;
    if (sign.life == Sign::Life::gone || sign.life == Sign::Life::silent) {
      missing.push_back(describe(Rank{r}, sign));
    }
    if (alive && !sign.waits) working.push_back(describe(Rank{r}, sign));
  }
  std::vector<std::string>& told = missing.empty() ? working : missing;
  const std::size_t more = told.size() > kMost ? told.size() - kMost : 0;
  told.resize(told.size() - more);
  if (!told.empty()) {
    return fmt::format("; {}{}", fmt::join(told, ", "),
                       more > 0 ? fmt::format(" and {} more like that", more) : "");
  }
  return all_known ? "; all other ranks are alive and wait as well" : "";
}

std::string name_transfer(bool send, const Tag& tag, Rank peer) {
  return fmt::format("{} of {} {} rank {}", send ? "send" : "receive", describe_tag(tag),
                     send ? "to" : "from", peer.value);
}

}  // namespace stagecraft::transport
