#include "schedules/rank_lowering.h"

#include "schedules/send_window.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace stagecraft {
namespace {

/// Lays slots and waits over one rank's list.
class RankLowering {
 public:
  RankLowering(const std::vector<Action>& list, const RankScan& scan, const PostOrder& order,
               const std::vector<std::int32_t>& counts, int sends_in_flight)
      : list_(list),
        scan_(scan),
        order_(order),
        plan_(post_plan(scan, order, counts)),
        window_(sends_in_flight),
        slot_of_(scan.receives.size()),
        free_(scan.channels.size()) {
    for (std::size_t c = 0; c < scan.channels.size(); ++c) {
      for (std::int32_t k = 0; k < counts[c]; ++k) {
        free_[c].emplace_back(lowered_.slots.size());
        lowered_.slots.push_back(scan.channels[c].info);
      }
      std::reverse(free_[c].begin(), free_[c].end());  // taken from the back: lowest number first
    }
    sort_posts();
  }

  LoweredRank run() {
    lowered_.actions.reserve(list_.size() + 5 * scan_.receives.size() + 8);
    post();
    for (std::size_t i = 0; i < list_.size(); ++i) lower(list_[i], i);
    for (const Tag& tag : window_.drain()) lowered_.actions.push_back({.op = Op::wait_send, .tag = tag});
    return std::move(lowered_);
  }

 private:
  void lower(const Action& action, std::size_t index) {
    const auto here = static_cast<std::int32_t>(index);
    Action lowered = action;
    const Payload input =
        action.op == Op::forward || action.op == Op::recompute ? Payload::activation : Payload::gradient;
    for (const std::int32_t r : scan_.reads(index)) {
      const Receive& receive = scan_.receives[static_cast<std::size_t>(r)];
      const Slot slot = slot_of_[static_cast<std::size_t>(r)];
      if (receive.first == here) {
        lowered_.actions.push_back({.op = Op::wait_receive, .tag = receive.tag, .slot = slot});
      }
      if (receive.tag.payload == input) lowered.slot = slot;
    }
    if (ends_send(action)) {
      // The sent activation goes away with the backward. By now its gradient is here, so this never blocks.
      const Tag sent = activation_after(action);
      if (window_.finish(sent)) lowered_.actions.push_back({.op = Op::wait_send, .tag = sent});
    }
    lowered_.actions.push_back(lowered);
    for (const std::int32_t r : scan_.reads(index)) {
      const Receive& receive = scan_.receives[static_cast<std::size_t>(r)];
      if (receive.last != here) continue;
      const auto channel = static_cast<std::size_t>(receive.channel);
      lowered_.actions.push_back({.op = Op::release, .slot = slot_of_[static_cast<std::size_t>(r)]});
      free_[channel].push_back(slot_of_[static_cast<std::size_t>(r)]);
      ++releases_;
      post();
    }
    if (scan_.sends(index)) send(scan_.sent_by(action));
  }

  /// By the release that they follow, then in their order.
  void sort_posts() {
    first_post_.assign(scan_.receives.size() + 2, 0);
    for (const std::int32_t after : plan_) ++first_post_[static_cast<std::size_t>(after) + 1];
    for (std::size_t i = 1; i < first_post_.size(); ++i) first_post_[i] += first_post_[i - 1];
    posts_.resize(plan_.size());
    std::vector<std::size_t> next(first_post_);
    for (const std::int32_t r : order_.sequence) {
      posts_[next[static_cast<std::size_t>(plan_[static_cast<std::size_t>(r)])]++] = r;
    }
  }

  /// Posts what the latest release makes room for; before the first release, what has room from the start.
  void post() {
    for (std::size_t i = first_post_[releases_]; i < first_post_[releases_ + 1]; ++i) {
      const auto receive = static_cast<std::size_t>(posts_[i]);
      auto& free = free_[static_cast<std::size_t>(scan_.receives[receive].channel)];
      slot_of_[receive] = free.back();
      free.pop_back();
      lowered_.actions.push_back(
          {.op = Op::post_receive, .tag = scan_.receives[receive].tag, .slot = slot_of_[receive]});
    }
  }

  void send(const Tag& tag) {
    if (const auto oldest = window_.start(tag))
      lowered_.actions.push_back({.op = Op::wait_send, .tag = *oldest});
    lowered_.actions.push_back({.op = Op::start_send, .tag = tag});
  }

  const std::vector<Action>& list_;
  const RankScan& scan_;
  const PostOrder& order_;
  std::vector<std::int32_t> plan_;
  SendWindow window_;
  LoweredRank lowered_{};
  std::vector<Slot> slot_of_;            // per receive, once posted
  std::vector<std::vector<Slot>> free_;  // per channel
  std::vector<std::size_t> first_post_;  // per number of releases, into posts_
  std::vector<std::int32_t> posts_;
  std::size_t releases_ = 0;
};

}  // namespace

LoweredRank lower_rank(const std::vector<Action>& list, const RankScan& scan, const PostOrder& order,
                       const std::vector<std::int32_t>& slots, int sends_in_flight) {
  return RankLowering(list, scan, order, slots, sends_in_flight).run();
}

}  // namespace stagecraft
