#include "schedules/lowering/posting_order.h"

#include "schedules/program/placement.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

namespace stagecraft {
namespace {

/// By transfer: where among its rank's events it is sent; behind everything when nowhere.
std::vector<std::size_t> send_places(const TransferScript& script) {
  std::vector<std::size_t> places(script.numbers().size(), std::numeric_limits<std::size_t>::max());
  for (std::size_t r = 0; r < script.ranks(); ++r) {
    const auto& events = script.events(r);
    for (std::size_t i = events.size(); i-- > 0;) {
      if (events[i].kind == TransferEvent::Kind::start_send) places[events[i].operand] = i;
    }
  }
  return places;
}

}  // namespace

std::vector<PostOrder> post_orders(const TransferScript& script, const TransportRules& rules) {
  std::vector<PostOrder> orders(script.ranks());
  if (!rules.ordered()) return orders;
  const auto places = send_places(script);
  for (std::size_t r = 0; r < orders.size(); ++r) {
    const auto& receives = script.transfers(r).receives;
    std::map<std::pair<Rank, ChannelKey>, std::vector<std::int32_t>> channels;
    for (std::size_t i = 0; i < receives.size(); ++i) {
      const Tag tag = script.numbers().tag(receives[i].transfer);
      channels[{sender_of(script.header().placement, tag), channel_key(rules, tag)}].push_back(
          static_cast<std::int32_t>(i));
    }
    orders[r].sequence.resize(receives.size());
    orders[r].previous.assign(receives.size(), -1);
    for (const auto& [channel, by_reader] : channels) {
      const auto place = [&](std::int32_t i) {
        return places[receives[static_cast<std::size_t>(i)].transfer];
      };
      std::vector<std::int32_t> by_sender = by_reader;
      std::stable_sort(by_sender.begin(), by_sender.end(),
                       [&](std::int32_t a, std::int32_t b) { return place(a) < place(b); });
      // Each channel keeps the places that its receives have among all the rank's.
      for (std::size_t k = 0; k < by_reader.size(); ++k) {
        orders[r].sequence[static_cast<std::size_t>(by_reader[k])] = by_sender[k];
        if (k > 0) orders[r].previous[static_cast<std::size_t>(by_sender[k])] = by_sender[k - 1];
      }
    }
  }
  return orders;
}

std::vector<std::int32_t> post_plan(const RankTransfers& rank, const PostOrder& order,
                                    std::vector<std::int32_t> slots) {
  std::vector<std::int32_t> plan(rank.receives.size());
  for (std::size_t k = 0; k < plan.size(); ++k) {
    const auto r = static_cast<std::size_t>(order.at(k));
    const auto c = static_cast<std::size_t>(rank.receives[r].channel);
    const std::int32_t left = slots[c]--;  // below 1: it waits for the release that many before
    std::int32_t after =
        left > 0 ? 0 : rank.releases[static_cast<std::size_t>(rank.channels[c].first_release - left)];
    if (!order.previous.empty() && order.previous[r] >= 0) {
      after = std::max(after, plan[static_cast<std::size_t>(order.previous[r])]);
    }
    plan[r] = after;
  }
  return plan;
}

std::int32_t posted_too_late(const RankTransfers& rank, const std::vector<std::int32_t>& plan) {
  for (std::size_t r = 0; r < plan.size(); ++r) {
    if (plan[r] > rank.receives[r].releases_before) return static_cast<std::int32_t>(r);
  }
  return -1;
}

}  // namespace stagecraft
