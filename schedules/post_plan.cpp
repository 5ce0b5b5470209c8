#include "schedules/post_plan.h"

#include "schedules/tag_numbers.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

namespace stagecraft {
namespace {

Rank sender_of(const Placement& placement, const Tag& tag) {
  if (tag.payload != Payload::loss) return placement.rank_of(tag.from, tag.micro_batch);
  return placement.ranks[tag.from.index()][static_cast<std::size_t>(tag.index)];
}

/// By tag number: where in its rank's list the tensor is sent; behind everything when nowhere.
std::vector<std::int32_t> send_places(const ScheduleProgram& program, const std::vector<RankScan>& scans,
                                      const TagNumbers& numbers) {
  std::vector<std::int32_t> places(numbers.size(), std::numeric_limits<std::int32_t>::max());
  for (std::size_t r = 0; r < program.ranks.size(); ++r) {
    for (std::size_t i = 0; i < program.ranks[r].size(); ++i) {
      if (!scans[r].sends(i)) continue;
      std::int32_t& place = places[numbers.of(scans[r].sent_by(program.ranks[r][i]))];
      place = std::min(place, static_cast<std::int32_t>(i));
    }
  }
  return places;
}

}  // namespace

std::vector<PostOrder> post_orders(const ScheduleProgram& program, const std::vector<RankScan>& scans,
                                   const TransportRules& rules) {
  std::vector<PostOrder> orders(scans.size());
  for (std::size_t r = 0; r < scans.size(); ++r) {
    orders[r].sequence.resize(scans[r].receives.size());
    std::iota(orders[r].sequence.begin(), orders[r].sequence.end(), 0);
  }
  if (!rules.ordered()) return orders;
  const TagNumbers numbers(program);
  const auto places = send_places(program, scans, numbers);
  for (std::size_t r = 0; r < scans.size(); ++r) {
    const auto& receives = scans[r].receives;
    std::map<std::pair<Rank, ChannelKey>, std::vector<std::int32_t>> channels;
    for (std::size_t i = 0; i < receives.size(); ++i) {
      const Tag& tag = receives[i].tag;
      channels[{sender_of(program.placement, tag), channel_key(rules, tag)}].push_back(
          static_cast<std::int32_t>(i));
    }
    orders[r].previous.assign(receives.size(), -1);
    for (const auto& [channel, by_reader] : channels) {
      const auto place = [&](std::int32_t i) {
        return places[numbers.of(receives[static_cast<std::size_t>(i)].tag)];
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

std::vector<std::int32_t> post_plan(const RankScan& scan, const PostOrder& order,
                                    const std::vector<std::int32_t>& slots) {
  std::vector<std::int32_t> plan(scan.receives.size());
  std::vector<std::int32_t> posted(scan.channels.size(), 0);
  for (const std::int32_t r : order.sequence) {
    const auto receive = static_cast<std::size_t>(r);
    const auto c = static_cast<std::size_t>(scan.receives[receive].channel);
    const std::int32_t waits_for = posted[c]++ - slots[c];  // the release that frees its slot
    std::int32_t after = waits_for < 0 ? 0 : scan.channels[c].releases[static_cast<std::size_t>(waits_for)];
    if (!order.previous.empty() && order.previous[receive] >= 0) {
      after = std::max(after, plan[static_cast<std::size_t>(order.previous[receive])]);
    }
    plan[receive] = after;
  }
  return plan;
}

std::int32_t posted_too_late(const RankScan& scan, const std::vector<std::int32_t>& plan) {
  for (std::size_t r = 0; r < plan.size(); ++r) {
    if (plan[r] > scan.receives[r].releases_before) return static_cast<std::int32_t>(r);
  }
  return -1;
}

}  // namespace stagecraft
