#include "schedules/lowering/rank_lowering.h"

#include "schedules/lowering/walk_rank.h"

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <utility>

namespace stagecraft {
namespace {

/// The walk's sink: writes actions, and posts receives where slots become free.
class ActionSink {
 public:
  ActionSink(std::span<const Action> list, const TagNumbers& numbers, const RankTransfers& rank,
             const PostOrder& order, const std::vector<std::int32_t>& counts)
      : list_(list),
        numbers_(numbers),
        rank_(rank),
        slot_of_(rank.receives.size()),
        free_(rank.channels.size()) {
    for (std::size_t c = 0; c < rank.channels.size(); ++c) {
      for (std::int32_t k = 0; k < counts[c]; ++k) {
        free_[c].emplace_back(lowered_.slots.size());
        lowered_.slots.push_back(rank.channels[c].info);
      }
      std::reverse(free_[c].begin(), free_[c].end());  // taken from the back: lowest number first
    }
    sort_posts(order, post_plan(rank, order, counts));
    lowered_.actions.reserve(list.size() + 5 * rank.receives.size() + 8);
    post();
  }

  void wait_receive(std::int32_t r) { add_transfer(Op::wait_receive, receive(r).transfer, slot_of(r)); }
  void act(std::size_t index) {
    Action& lowered = lowered_.actions.emplace_back(list_[index]);
    const Payload input =
        lowered.op == Op::forward || lowered.op == Op::recompute ? Payload::activation : Payload::gradient;
    for (const std::int32_t r : rank_.read_by(index)) {
      const SlotInfo& info = rank_.channels[static_cast<std::size_t>(receive(r).channel)].info;
      const bool of_neighbour = std::abs(info.to.value - info.from.value) == 1;
      if (info.payload == input && of_neighbour) lowered.slot = slot_of(r);
    }
  }
  void release(std::int32_t r) {
    lowered_.actions.push_back({.op = Op::release, .slot = slot_of(r)});
    free_[static_cast<std::size_t>(receive(r).channel)].push_back(slot_of(r));
    ++releases_;
    post();
  }
  void start_send(std::uint32_t transfer) { add_transfer(Op::start_send, transfer, {}); }
  void wait_send(std::uint32_t transfer) { add_transfer(Op::wait_send, transfer, {}); }
  void drain() {}

  [[nodiscard]] LoweredRank take() { return std::move(lowered_); }

 private:
  [[nodiscard]] const Receive& receive(std::int32_t r) const {
    return rank_.receives[static_cast<std::size_t>(r)];
  }
  [[nodiscard]] Slot& slot_of(std::int32_t r) { return slot_of_[static_cast<std::size_t>(r)]; }
  void add_transfer(Op op, std::uint32_t transfer, Slot slot) {
    lowered_.actions.push_back({.op = op, .tag = numbers_.tag(transfer), .slot = slot});
  }

  /// By the release that they follow, then in their order.
  void sort_posts(const PostOrder& order, const std::vector<std::int32_t>& plan) {
    first_post_.assign(plan.size() + 2, 0);
    for (const std::int32_t after : plan) ++first_post_[static_cast<std::size_t>(after) + 1];
    for (std::size_t i = 1; i < first_post_.size(); ++i) first_post_[i] += first_post_[i - 1];
    posts_.resize(plan.size());
    std::vector<std::size_t> next(first_post_);
    for (std::size_t k = 0; k < plan.size(); ++k) {
      const std::int32_t r = order.at(k);
      posts_[next[static_cast<std::size_t>(plan[static_cast<std::size_t>(r)])]++] = r;
    }
  }

  /// Posts what the latest release makes room for; before the first release, what has room from the start.
  void post() {
    for (std::size_t i = first_post_[releases_]; i < first_post_[releases_ + 1]; ++i) {
      auto& free = free_[static_cast<std::size_t>(receive(posts_[i]).channel)];
      slot_of(posts_[i]) = free.back();
      free.pop_back();
      add_transfer(Op::post_receive, receive(posts_[i]).transfer, slot_of(posts_[i]));
    }
  }

  std::span<const Action> list_;
  const TagNumbers& numbers_;
  const RankTransfers& rank_;
  LoweredRank lowered_{};
  std::vector<Slot> slot_of_;            // per receive, once posted
  std::vector<std::vector<Slot>> free_;  // per channel
  std::vector<std::size_t> first_post_;  // per number of releases, into posts_
  std::vector<std::int32_t> posts_;
  std::size_t releases_ = 0;
};

}  // namespace

LoweredRank lower_rank(std::span<const Action> list, const TagNumbers& numbers,
                       const RankTransfers& transfers, const PostOrder& order,
                       const std::vector<std::int32_t>& slots, int sends_in_flight) {
  ActionSink sink(list, numbers, transfers, order, slots);
  SendWindow window(numbers, sends_in_flight);
  walk_rank(transfers, window, sink);
  return sink.take();
}

}  // namespace stagecraft
