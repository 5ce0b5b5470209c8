#include "schedules/lowering/slot_choice.h"

#include "base/bisect.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace stagecraft {
namespace {

/// least_that(), which tries `low` first: most often it works.
template <class Works>
std::int32_t bisect(std::int32_t low, std::int32_t high, Works works) {
  if (low == high || works(low)) return low;
  return least_that(low + 1, high, works);
}

}  // namespace

std::int32_t SlotRule::slots_of(const Channel& channel, std::int32_t stages) const {
  // Losses are a few bytes. Usually up to one group per stage is on its way, and none should hold another up.
  const bool loss = channel.info.payload == Payload::loss;
  const std::int32_t wanted = loss          ? std::max(channel.held, stages) + 1 + losses
                              : uniform > 0 ? uniform
                                            : channel.slots_with(surplus);
  return std::min(wanted, channel.transfers);
}

std::int32_t most_transfers(const TransferScript& script) {
  std::int32_t most = 0;
  for (std::size_t r = 0; r < script.ranks(); ++r) {
    for (const Channel& channel : script.transfers(r).channels) {
      if (channel.info.payload != Payload::loss) most = std::max(most, channel.transfers);
    }
  }
  return most;
}

std::int32_t unhurried_surplus(TickClock& clock, std::int32_t low) {
  const std::int32_t most = most_transfers(clock.script());
  if (low >= most) return low;
  const auto now = clock.time(low);
  if (now && !clock.held_up()) return low;
  const auto best = clock.time(most);
  if (!best || now == best) return low;
  return bisect(low + 1, most, [&](std::int32_t surplus) { return clock.time(surplus) == best; });
}

SlotChoice::SlotChoice(const ScheduleProgram& program, const LoweringOptions& options)
    : program_(program),
      script_(program, options.sends_in_flight),
      orders_(post_orders(script_, options.rules)),
      run_(script_, options.rules, options.costs) {
  for (const ChannelSlots& fixed : options.channels)
    fixed_.emplace(std::pair{fixed.rank, boundary_key(fixed.channel)}, fixed.slots);
  for (std::size_t r = 0; r < script_.ranks(); ++r) {
    for (const Channel& channel : script_.transfers(r).channels) {
      if (channel.info.payload == Payload::loss) {
        most_losses_ = std::max(most_losses_, channel.transfers);
        continue;
      }
      if (channel.held > most_held_) {
        most_held_ = channel.held;
        most_held_by_ =
            fmt::format("rank {} reads {} {}s from stage {} to stage {} at once", r, channel.held,
                        enum_name(channel.info.payload), channel.info.from.value, channel.info.to.value);
      }
    }
  }
}

SlotCounts SlotChoice::counts(const SlotRule& rule) const {
  SlotCounts counts(script_.ranks());
  for (std::size_t r = 0; r < script_.ranks(); ++r) {
    for (const Channel& channel : script_.transfers(r).channels) {
      const auto fixed = fixed_.empty() ? fixed_.end() : fixed_.find({Rank{r}, boundary_key(channel.info)});
      counts[r].push_back(fixed != fixed_.end() ? fixed->second
                                                : rule.slots_of(channel, program_.placement.stages()));
    }
  }
  return counts;
}

std::int32_t SlotChoice::least(SlotRule rule, std::int32_t SlotRule::*part, std::int32_t low) {
  const std::int32_t high = std::exchange(rule.*part, low);
  return bisect(low, high, [&](std::int32_t value) {
    rule.*part = value;
    return works(rule);
  });
}

LeastSlots SlotChoice::least_of_each() {
  LeastSlots result;
  for (std::size_t r = 0; r < script_.ranks(); ++r) {
    for (const Channel& channel : script_.transfers(r).channels) {
      result.channels.push_back({Rank{r}, channel.info, channel.held, channel.transfers, channel.held});
    }
  }
  if (!set(result.channels, 0, result.channels.size())) {
    for (ChannelSlots& channel : result.channels) channel.slots = channel.transfers;
    lower_range(result.channels, 0, result.channels.size());
  }
  result.exact = true;
  for (const ChannelSlots& channel : result.channels) {
    result.total += channel.slots;
    result.exact = result.exact && channel.slots == channel.held;
  }
  return result;
}

void SlotChoice::require_posts(std::size_t r, const std::vector<std::int32_t>& counts) const {
  if (orders_[r].previous.empty() && fixed_.empty())
    return;  // posted as they are read: nothing is read before
  const RankTransfers& rank = script_.transfers(r);
  const std::int32_t late = posted_too_late(rank, post_plan(rank, orders_[r], counts));
  if (late < 0) return;
  throw RefusedError(fmt::format(
      "rank {} reads {} before it has a slot to post it into: earlier receives of its channel have all", r,
      describe_tag(script_.numbers().tag(rank.receives[static_cast<std::size_t>(late)].transfer))));
}

bool SlotChoice::set(std::vector<ChannelSlots>& channels, std::size_t begin, std::size_t end) {
  std::vector<int> before;
  for (std::size_t c = begin; c < end; ++c)
    before.push_back(std::exchange(channels[c].slots, channels[c].held));
  if (works(channels)) return true;
  for (std::size_t c = begin; c < end; ++c) channels[c].slots = before[c - begin];
  return false;
}

void SlotChoice::lower_range(std::vector<ChannelSlots>& channels, std::size_t begin, std::size_t end) {
  if (begin == end || set(channels, begin, end)) return;
  if (end - begin == 1) {
    ChannelSlots& channel = channels[begin];
    channel.slots = bisect(channel.held + 1, channel.slots, [&](std::int32_t slots) {
      channel.slots = slots;
      return works(channels);
    });
    return;
  }
  const std::size_t middle = begin + (end - begin) / 2;
  lower_range(channels, begin, middle);
  lower_range(channels, middle, end);
}

bool SlotChoice::works(const std::vector<ChannelSlots>& channels) {
  SlotCounts counts(script_.ranks());
  for (const ChannelSlots& channel : channels) counts[channel.rank.index()].push_back(channel.slots);
  return works(counts);
}

}  // namespace stagecraft
