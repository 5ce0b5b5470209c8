#pragma once

// Where lowering puts waits, releases and sends around a rank's own actions (lowering.h says why). It stands
// here once: rank_lowering.cpp makes actions of it, transfer_script.cpp the events that a run of the program
// goes through.

#include "schedules/lowering/receives.h"
#include "schedules/program/transfer_numbers.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace stagecraft {

/// The sends of one rank that are under way: of every boundary only so many at once. Transfers go by their
/// numbers (transfer_numbers.h).
class SendWindow {
 public:
  SendWindow(const TagNumbers& numbers, int sends_in_flight) : numbers_(numbers), most_(sends_in_flight) {}

  /// Takes `transfer` up; returns the send to wait for before it is started, or kNoTransfer.
  std::uint32_t start(std::uint32_t transfer) {
    const auto [first, count] = numbers_.boundary(transfer);
    const auto same = [first = first, count = count](std::uint32_t one) { return one - first < count; };
    std::uint32_t oldest = kNoTransfer;
    if (std::count_if(sent_.begin(), sent_.end(), same) == most_) {
      const auto at = std::find_if(sent_.begin(), sent_.end(), same);
      oldest = *at;
      sent_.erase(at);
    }
    sent_.push_back(transfer);
    return oldest;
  }
  /// Whether `transfer` was under way; it no longer is.
  bool finish(std::uint32_t transfer) {
    const auto at = std::find(sent_.begin(), sent_.end(), transfer);
    if (at == sent_.end()) return false;
    sent_.erase(at);
    return true;
  }
  /// What is still under way, oldest first, over all boundaries.
  [[nodiscard]] const std::vector<std::uint32_t>& under_way() const { return sent_; }
  void clear() { sent_.clear(); }

 private:
  TagNumbers numbers_;
  std::ptrdiff_t most_;
  std::vector<std::uint32_t> sent_;  // oldest first; never more than a handful per boundary
};

/// Calls `sink` with what the rank does, in order: wait_receive(r) and release(r) with an index into
/// `rank.receives`, act(i) with the index of an action, start_send(t) and wait_send(t) with the number of a
/// transfer, and drain() once, behind which only wait_send follows. `window` is empty, and empty again
/// afterwards. Linear in the number of actions.
template <class Sink>
void walk_rank(const RankTransfers& rank, SendWindow& window, Sink& sink) {
  for (std::size_t i = 0; i + 1 < rank.actions.size(); ++i) {
    const auto here = static_cast<std::int32_t>(i);
    for (const std::int32_t r : rank.read_by(i)) {
      if (rank.receives[static_cast<std::size_t>(r)].first == here) sink.wait_receive(r);
    }
    // By now the gradient of what was sent is here, so this never blocks.
    for (const std::uint32_t ended : rank.ended_by(i)) {
      if (window.finish(ended)) sink.wait_send(ended);
    }
    sink.act(i);
    for (const std::int32_t r : rank.read_by(i)) {
      if (rank.receives[static_cast<std::size_t>(r)].last == here) sink.release(r);
    }
    for (const std::uint32_t sent : rank.sent_by(i)) {
      if (const std::uint32_t oldest = window.start(sent); oldest != kNoTransfer) sink.wait_send(oldest);
      sink.start_send(sent);
    }
  }
  sink.drain();
  for (const std::uint32_t transfer : window.under_way()) sink.wait_send(transfer);
  window.clear();
}

}  // namespace stagecraft
