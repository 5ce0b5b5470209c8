#include "schedules/lowering.h"

#include "schedules/lowering_scan.h"
#include "schedules/post_plan.h"
#include "schedules/send_window.h"
#include "schedules/slot_flow.h"
#include "schedules/unit_time.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>

namespace stagecraft {
namespace {

/// How many slots a channel gets, if it has as many transfers.
struct SlotRule {
  std::int32_t uniform = 0;  ///< of every boundary; 0: what it holds at once, and `surplus`
  std::int32_t surplus = 0;
  std::int32_t losses = 0;  ///< of losses, beside the usual ones

  [[nodiscard]] std::int32_t slots_of(const Channel& channel, std::int32_t stages) const {
    // Losses are a few bytes. Usually up to one group a stage is on its way, and none should hold another up.
    const bool loss = channel.info.payload == Payload::loss;
    const std::int32_t wanted = loss          ? std::max(channel.held, stages) + 1 + losses
                                : uniform > 0 ? uniform
                                              : channel.held + surplus;
    return std::min(wanted, channel.transfers);
  }
};

/// Lays slots and waits over one rank's list.
class RankLowering {
 public:
  RankLowering(const ScheduleProgram& program, Rank rank, const RankScan& scan, const PostOrder& order,
               const std::vector<std::int32_t>& counts, int sends_in_flight)
      : program_(program),
        rank_(rank),
        scan_(scan),
        order_(order),
        plan_(post_plan(scan, order, counts)),
        window_(sends_in_flight),
        slot_of_(scan.receives.size()),
        free_(scan.channels.size()) {
    for (std::size_t c = 0; c < scan.channels.size(); ++c) {
      for (std::int32_t k = 0; k < counts[c]; ++k) {
        free_[c].emplace_back(slots.size());
        slots.push_back(scan.channels[c].info);
      }
      std::reverse(free_[c].begin(), free_[c].end());  // taken from the back: lowest number first
    }
    sort_posts();
  }

  void run() {
    const auto& list = program_.ranks[rank_.index()];
    actions.reserve(list.size() + 5 * scan_.receives.size() + 8);
    post();
    for (std::size_t i = 0; i < list.size(); ++i) lower(list[i], i);
    for (const Tag& tag : window_.drain()) actions.push_back({.op = Op::wait_send, .tag = tag});
  }

  std::vector<Action> actions;
  std::vector<SlotInfo> slots;

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
        actions.push_back({.op = Op::wait_receive, .tag = receive.tag, .slot = slot});
      }
      if (receive.tag.payload == input) lowered.slot = slot;
    }
    if (ends_send(action)) {
      // The sent activation goes away with the backward. By now its gradient is here, so this never blocks.
      const Tag sent = activation_after(action);
      if (window_.finish(sent)) actions.push_back({.op = Op::wait_send, .tag = sent});
    }
    actions.push_back(lowered);
    for (const std::int32_t r : scan_.reads(index)) {
      const Receive& receive = scan_.receives[static_cast<std::size_t>(r)];
      if (receive.last != here) continue;
      const auto channel = static_cast<std::size_t>(receive.channel);
      actions.push_back({.op = Op::release, .slot = slot_of_[static_cast<std::size_t>(r)]});
      free_[channel].push_back(slot_of_[static_cast<std::size_t>(r)]);
      ++releases_;
      post();
    }
    if (!within(program_, action)) return;
    const Tag sent = sent_after(program_, rank_, action);
    if (sent.from.valid()) send(sent);
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
      actions.push_back(
          {.op = Op::post_receive, .tag = scan_.receives[receive].tag, .slot = slot_of_[receive]});
    }
  }

  void send(const Tag& tag) {
    if (const auto oldest = window_.start(tag)) actions.push_back({.op = Op::wait_send, .tag = *oldest});
    actions.push_back({.op = Op::start_send, .tag = tag});
  }

  const ScheduleProgram& program_;
  Rank rank_;
  const RankScan& scan_;
  const PostOrder& order_;
  std::vector<std::int32_t> plan_;
  SendWindow window_;
  std::vector<Slot> slot_of_;            // per receive, once posted
  std::vector<std::vector<Slot>> free_;  // per channel
  std::vector<std::size_t> first_post_;  // per number of releases, into posts_
  std::vector<std::int32_t> posts_;
  std::size_t releases_ = 0;
};

/// Lowering with any number of slots, over one scan.
class Lowering {
 public:
  Lowering(const ScheduleProgram& program, const LoweringOptions& options)
      : program_(program),
        sends_in_flight_(options.sends_in_flight),
        scans_(scan_all(program)),
        orders_(post_orders(program, scans_, options.rules)),
        flow_(program, scans_, orders_, options.sends_in_flight, options.rules, options.costs) {
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

  [[nodiscard]] SlotCounts counts(const SlotRule& rule) const {
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

  /// Throws RefusedError where a receive is read before it can be posted.
  [[nodiscard]] LoweredProgram with(const SlotCounts& counts) const {
    LoweredProgram lowered{program_, {}, {}, 0};
    for (std::size_t r = 0; r < scans_.size(); ++r) {
      require_posts(r, counts[r]);
      RankLowering rank(program_, Rank{r}, scans_[r], orders_[r], counts[r], sends_in_flight_);
      rank.run();
      lowered.ranks.push_back(std::move(rank.actions));
      lowered.slots.push_back(std::move(rank.slots));
      for (std::size_t c = 0; c < counts[r].size(); ++c) {
        if (scans_[r].channels[c].info.payload == Payload::loss) continue;
        lowered.slots_per_channel = std::max(lowered.slots_per_channel, counts[r][c]);
      }
    }
    return lowered;
  }

  [[nodiscard]] bool works(const SlotCounts& counts) const { return flow_.finishes(counts); }
  [[nodiscard]] bool works(const SlotRule& rule) const { return works(counts(rule)); }

  /// The least value of `part`, from `low` on, with which `rule` works, as it must now. More slots only ever
  /// help, and most often the fewest do.
  [[nodiscard]] std::int32_t least(SlotRule rule, std::int32_t SlotRule::*part, std::int32_t low) const {
    const std::int32_t high = std::exchange(rule.*part, low);
    return bisect(low, high, [&](std::int32_t value) {
      rule.*part = value;
      return works(rule);
    });
  }

  [[nodiscard]] LeastSlots least_of_each() const {
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

  /// The least surplus, from `low` on, with which the receive slots do not slow the schedule down.
  [[nodiscard]] std::int32_t unhurried_surplus(std::int32_t low) const {
    const auto timed = [&](std::int32_t surplus) {
      return unit_time(program_, scans_, surplus, sends_in_flight_);
    };
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

  [[nodiscard]] std::int32_t most_transfers() const { return most_transfers_; }  ///< of any boundary
  [[nodiscard]] std::int32_t most_losses() const { return most_losses_; }
  [[nodiscard]] std::int32_t most_held() const { return most_held_; }
  [[nodiscard]] const std::string& most_held_by() const { return most_held_by_; }

 private:
  using ChannelName = std::tuple<Rank, Payload, StageId, StageId>;
  static ChannelName name_of(Rank rank, const SlotInfo& info) {
    return {rank, info.payload, info.from, info.to};
  }

  static std::vector<RankScan> scan_all(const ScheduleProgram& program) {
    std::vector<RankScan> scans;
    for (std::size_t r = 0; r < program.ranks.size(); ++r) scans.push_back(scan_rank(program, Rank{r}));
    return scans;
  }

  /// The least of low .. high that works, where high does and all above one that does do.
  template <class Works>
  static std::int32_t bisect(std::int32_t low, std::int32_t high, Works works) {
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

  void require_posts(std::size_t r, const std::vector<std::int32_t>& counts) const {
    if (orders_[r].previous.empty() && fixed_.empty())
      return;  // posted as they are read: nothing is read before
    const std::int32_t late = posted_too_late(scans_[r], post_plan(scans_[r], orders_[r], counts));
    if (late < 0) return;
    throw RefusedError(fmt::format(
        "rank {} reads {} before it has a slot to post it into: earlier receives of its channel have all", r,
        describe_tag(scans_[r].receives[static_cast<std::size_t>(late)].tag)));
  }

  /// Brings a range of channels down to what they read at once, if the program still finishes; as it was if
  /// not.
  bool set(std::vector<ChannelSlots>& channels, std::size_t begin, std::size_t end) const {
    std::vector<int> before;
    for (std::size_t c = begin; c < end; ++c)
      before.push_back(std::exchange(channels[c].slots, channels[c].held));
    if (works(channels)) return true;
    for (std::size_t c = begin; c < end; ++c) channels[c].slots = before[c - begin];
    return false;
  }

  void lower_range(std::vector<ChannelSlots>& channels, std::size_t begin, std::size_t end) const {
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

  [[nodiscard]] bool works(const std::vector<ChannelSlots>& channels) const {
    SlotCounts counts(scans_.size());
    for (const ChannelSlots& channel : channels) counts[channel.rank.index()].push_back(channel.slots);
    return works(counts);
  }

  const ScheduleProgram& program_;
  int sends_in_flight_;
  std::vector<RankScan> scans_;
  std::vector<PostOrder> orders_;
  SlotFlow flow_;
  std::map<ChannelName, int> fixed_;
  std::int32_t most_transfers_ = 0;
  std::int32_t most_losses_ = 0;
  std::int32_t most_held_ = 0;
  std::string most_held_by_;
};

}  // namespace

LoweredProgram lower(const ScheduleProgram& program, const LoweringOptions& options) {
  if (options.slots_per_channel < 0 || options.extra_slots < 0 || options.sends_in_flight < 1) {
    throw InputError(
        fmt::format("expected at least 0 slots and 1 send in flight, found slots_per_channel {}, "
                    "extra_slots {}, sends_in_flight {}",
                    options.slots_per_channel, options.extra_slots, options.sends_in_flight));
  }
  const Lowering lowering(program, options);
  const bool chosen = options.slots_per_channel > 0;
  if (chosen && options.slots_per_channel < lowering.most_held()) {
    throw RefusedError(
        fmt::format("slots_per_channel is {}, but {}", options.slots_per_channel, lowering.most_held_by()));
  }
  SlotRule rule{.uniform = options.slots_per_channel, .surplus = options.extra_slots};
  if (!chosen && options.slots_for_speed) rule.surplus = lowering.unhurried_surplus(options.extra_slots);
  if (!lowering.works(rule)) {
    rule.losses = lowering.most_losses();
    const std::int32_t least_surplus = rule.surplus;
    if (!chosen) rule.surplus = std::max(least_surplus, lowering.most_transfers());
    if (lowering.works(rule)) {
      // Boundaries first: one slot of theirs is worth thousands of the losses'.
      if (!chosen) rule.surplus = lowering.least(rule, &SlotRule::surplus, least_surplus);
      rule.losses = lowering.least(rule, &SlotRule::losses, 0);
    }
  }
  return lowering.with(lowering.counts(rule));
}

std::optional<int> least_slots(const ScheduleProgram& program, const LoweringOptions& options) {
  const Lowering lowering(program, options);
  const SlotRule rule{.uniform = lowering.most_transfers(), .losses = lowering.most_losses()};
  if (!lowering.works(rule)) return std::nullopt;
  return lowering.least(rule, &SlotRule::uniform, lowering.most_held());
}

std::optional<LeastSlots> least_channel_slots(const ScheduleProgram& program,
                                              const LoweringOptions& options) {
  const Lowering lowering(program, options);
  const SlotRule rule{.uniform = lowering.most_transfers(), .losses = lowering.most_losses()};
  if (!lowering.works(rule)) return std::nullopt;
  LeastSlots least = lowering.least_of_each();
  least.uniform = lowering.least(rule, &SlotRule::uniform, lowering.most_held());
  return least;
}

}  // namespace stagecraft
