#include "schedules/slot_choice.h"

#include "schedules/unit_time.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace stagecraft {
namespace {

/// The least of low .. high that works, where high does and all above one that does do.
template <class Works>
std::int32_t bisect(std::int32_t low, std::int32_t high, Works works) {
  if (low == high || works(low)) return low;
  ++low;
  while (low < high) {
    const std::int32_t middle = low + (high - low) / 2;
    if (works(middle)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return high;
}

}  // namespace

std::int32_t SlotRule::slots_of(const Channel& channel, std::int32_t stages) const {
  // Losses are a few bytes. Usually up to one group a stage is on its way, and none should hold another up.
  const bool loss = channel.info.payload == Payload::loss;
  const std::int32_t wanted = loss          ? std::max(channel.held, stages) + 1 + losses
                              : uniform > 0 ? uniform
                                            : channel.held + surplus;
  return std::min(wanted, channel.transfers);
}

SlotChoice::SlotChoice(const ScheduleProgram& program, const LoweringOptions& options)
    : program_(program),
      scans_(scan_ranks(program)),
      orders_(post_orders(program, scans_, options.rules)),
      transfers_(program, scans_, options.sends_in_flight),
      flow_(program, scans_, transfers_, orders_, options.rules, options.costs) {
  for (const ChannelSlots& fixed : options.channels)
    fixed_.emplace(name_of(fixed.rank, fixed.channel), fixed.slots);
  for (std::size_t r = 0; r < scans_.size(); ++r) {
    for (const Channel& channel : scans_[r].channels) {
      if (channel.info.payload == Payload::loss) {
        most_losses_ = std::max(most_losses_, channel.transfers);
        continue;
      }
      most_transfers_ = std::max(most_transfers_, channel.transfers);
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
  SlotCounts counts(scans_.size());
  for (std::size_t r = 0; r < scans_.size(); ++r) {
    for (const Channel& channel : scans_[r].channels) {
      const auto fixed = fixed_.empty() ? fixed_.end() : fixed_.find(name_of(Rank{r}, channel.info));
      counts[r].push_back(fixed != fixed_.end() ? fixed->second
                                                : rule.slots_of(channel, program_.placement.stages()));
    }
  }
  return counts;
}

std::int32_t SlotChoice::least(SlotRule rule, std::int32_t SlotRule::*part, std::int32_t low) const {
  const std::int32_t high = std::exchange(rule.*part, low);
  return bisect(low, high, [&](std::int32_t value) {
    rule.*part = value;
    return works(rule);
  });
}

LeastSlots SlotChoice::least_of_each() const {
  LeastSlots result;
  for (std::size_t r = 0; r < scans_.size(); ++r) {
    for (const Channel& channel : scans_[r].channels) {
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

std::int32_t SlotChoice::unhurried_surplus(std::int32_t low) const {
  const auto timed = [&](std::int32_t surplus) { return unit_time(transfers_, scans_, surplus); };
  const auto now = timed(low);
  if (low >= most_transfers_ || (now && !now->held_up)) return low;
  const auto best = timed(most_transfers_);
  if (!best) return low;  // it finishes with no number of slots
  const auto as_fast = [&](const std::optional<UnitTime>& time) {
    return time && time->ticks == best->ticks;
  };
  if (as_fast(now)) return low;
  return bisect(low + 1, most_transfers_, [&](std::int32_t surplus) { return as_fast(timed(surplus)); });
}

void SlotChoice::require_posts(std::size_t r, const std::vector<std::int32_t>& counts) const {
  if (orders_[r].previous.empty() && fixed_.empty())
    return;  // posted as they are read: nothing is read before
  const std::int32_t late = posted_too_late(scans_[r], post_plan(scans_[r], orders_[r], counts));
  if (late < 0) return;
  throw RefusedError(fmt::format(
      "rank {} reads {} before it has a slot to post it into: earlier receives of its channel have all", r,
      describe_tag(scans_[r].receives[static_cast<std::size_t>(late)].tag)));
}

bool SlotChoice::set(std::vector<ChannelSlots>& channels, std::size_t begin, std::size_t end) const {
  std::vector<int> before;
  for (std::size_t c = begin; c < end; ++c)
    before.push_back(std::exchange(channels[c].slots, channels[c].held));
  if (works(channels)) return true;
  for (std::size_t c = begin; c < end; ++c) channels[c].slots = before[c - begin];
  return false;
}

void SlotChoice::lower_range(std::vector<ChannelSlots>& channels, std::size_t begin, std::size_t end) const {
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

bool SlotChoice::works(const std::vector<ChannelSlots>& channels) const {
  SlotCounts counts(scans_.size());
  for (const ChannelSlots& channel : channels) counts[channel.rank.index()].push_back(channel.slots);
  return works(counts);
}

}  // namespace stagecraft
