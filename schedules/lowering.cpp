#include "schedules/lowering.h"

#include "schedules/dependencies.h"
#include "schedules/lowering_scan.h"
#include "schedules/unit_time.h"

#include <fmt/format.h>

#include <algorithm>
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

/// Sends of one boundary that are under way, oldest first. There are never more than a handful.
struct Outstanding {
  SlotInfo channel;
  std::vector<Tag> tags;
};

/// Lays slots and waits over one rank's list.
class RankLowering {
 public:
  RankLowering(const ScheduleProgram& program, Rank rank, const RankScan& scan, const SlotRule& rule,
               int sends_in_flight)
      : program_(program),
        rank_(rank),
        scan_(scan),
        sends_in_flight_(static_cast<std::size_t>(sends_in_flight)),
        slot_of_(scan.receives.size()),
        free_(scan.channels.size()),
        waiting_(scan.channels.size()),
        next_(scan.channels.size(), 0) {
    for (std::size_t c = 0; c < scan.channels.size(); ++c) {
      const std::int32_t count = rule.slots_of(scan.channels[c], program.placement.stages());
      for (std::int32_t k = 0; k < count; ++k) {
        free_[c].emplace_back(slots.size());
        slots.push_back(scan.channels[c].info);
      }
      std::reverse(free_[c].begin(), free_[c].end());  // taken from the back: lowest number first
    }
    for (std::size_t r = 0; r < scan.receives.size(); ++r) {
      waiting_[static_cast<std::size_t>(scan.receives[r].channel)].push_back(r);
    }
  }

  void run() {
    const auto& list = program_.ranks[rank_.index()];
    actions.reserve(list.size() + 6 * scan_.receives.size());
    for (const Receive& receive : scan_.receives) post_next(static_cast<std::size_t>(receive.channel));
    for (std::size_t i = 0; i < list.size(); ++i) lower(list[i], i);
    // Oldest first, over all boundaries.
    for (const Tag& tag : started_) {
      if (remove(tag)) actions.push_back({.op = Op::wait_send, .tag = tag});
    }
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
    if (action.op == Op::backward || action.op == Op::backward_input) {
      // The sent activation goes away with the backward. By now its gradient is here, so this never blocks.
      const Tag sent{.payload = Payload::activation,
                     .from = action.stage,
                     .to = StageId{action.stage.value + 1},
                     .micro_batch = action.micro_batch};
      if (remove(sent)) actions.push_back({.op = Op::wait_send, .tag = sent});
    }
    actions.push_back(lowered);
    for (const std::int32_t r : scan_.reads(index)) {
      const Receive& receive = scan_.receives[static_cast<std::size_t>(r)];
      if (receive.last != here) continue;
      const auto channel = static_cast<std::size_t>(receive.channel);
      actions.push_back({.op = Op::release, .slot = slot_of_[static_cast<std::size_t>(r)]});
      free_[channel].push_back(slot_of_[static_cast<std::size_t>(r)]);
      post_next(channel);
    }
    if (!within(program_, action)) return;
    const Tag sent = sent_after(program_, rank_, action);
    if (sent.from.valid()) send(sent);
  }

  /// Posts the channel's next receive if one is left and a slot is free.
  void post_next(std::size_t channel) {
    if (next_[channel] == waiting_[channel].size() || free_[channel].empty()) return;
    const std::size_t receive = waiting_[channel][next_[channel]++];
    slot_of_[receive] = free_[channel].back();
    free_[channel].pop_back();
    actions.push_back(
        {.op = Op::post_receive, .tag = scan_.receives[receive].tag, .slot = slot_of_[receive]});
  }

  void send(const Tag& tag) {
    Outstanding& out = outstanding(tag);
    if (out.tags.size() == sends_in_flight_) {
      actions.push_back({.op = Op::wait_send, .tag = out.tags.front()});
      out.tags.erase(out.tags.begin());
    }
    out.tags.push_back(tag);
    started_.push_back(tag);
    actions.push_back({.op = Op::start_send, .tag = tag});
  }

  Outstanding& outstanding(const Tag& tag) {
    const SlotInfo channel{tag.payload, tag.from, tag.to, tag.index};
    for (Outstanding& out : outstanding_) {
      if (out.channel == channel) return out;
    }
    return outstanding_.emplace_back(Outstanding{channel, {}});
  }

  bool remove(const Tag& tag) {
    auto& tags = outstanding(tag).tags;
    const auto found = std::find(tags.begin(), tags.end(), tag);
    if (found == tags.end()) return false;
    tags.erase(found);
    return true;
  }

  const ScheduleProgram& program_;
  Rank rank_;
  const RankScan& scan_;
  std::size_t sends_in_flight_;
  std::vector<Slot> slot_of_;                      // per receive, once posted
  std::vector<std::vector<Slot>> free_;            // per channel
  std::vector<std::vector<std::size_t>> waiting_;  // per channel its receives in order
  std::vector<std::size_t> next_;                  // per channel the first that is not posted
  std::vector<Outstanding> outstanding_;
  std::vector<Tag> started_;
};

bool finishes(const LoweredProgram& program) { return Dependencies(program).acyclic(); }

/// Lowering with any number of slots, over one scan.
class Lowering {
 public:
  Lowering(const ScheduleProgram& program, int sends_in_flight)
      : program_(program), sends_in_flight_(sends_in_flight) {
    for (std::size_t r = 0; r < program.ranks.size(); ++r) {
      scans_.push_back(scan_rank(program, Rank{r}));
      for (const Channel& channel : scans_.back().channels) {
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

  [[nodiscard]] LoweredProgram with(const SlotRule& rule) const {
    LoweredProgram lowered{program_, {}, {}, 0};
    for (std::size_t r = 0; r < scans_.size(); ++r) {
      RankLowering rank(program_, Rank{r}, scans_[r], rule, sends_in_flight_);
      rank.run();
      lowered.ranks.push_back(std::move(rank.actions));
      lowered.slots.push_back(std::move(rank.slots));
      for (const Channel& channel : scans_[r].channels) {
        if (channel.info.payload == Payload::loss) continue;
        lowered.slots_per_channel =
            std::max(lowered.slots_per_channel, rule.slots_of(channel, program_.placement.stages()));
      }
    }
    return lowered;
  }

  [[nodiscard]] bool works(const SlotRule& rule) const { return finishes(with(rule)); }

  /// The least value of `part`, from `low` on, with which `rule` works, as it must now. More slots only ever
  /// help, and most often the fewest do.
  [[nodiscard]] std::int32_t least(SlotRule rule, std::int32_t SlotRule::*part, std::int32_t low) const {
    std::int32_t high = std::exchange(rule.*part, low);
    if (low == high || works(rule)) return low;
    ++low;
    while (low < high) {
      const std::int32_t middle = low + (high - low) / 2;
      rule.*part = middle;
      if (works(rule)) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return high;
  }

  /// The least surplus, from `low` on, with which the receive slots do not slow the schedule down.
  [[nodiscard]] std::int32_t unhurried_surplus(std::int32_t low) const {
    const auto timed = [&](std::int32_t surplus) {
      return unit_time(program_, scans_, surplus, sends_in_flight_);
    };
    if (const auto now = timed(low); now && !now->held_up) return low;
    const auto best = timed(most_transfers_);
    if (!best) return low;  // it finishes with no number of slots
    const auto as_fast = [&](std::int32_t surplus) {
      const auto time = timed(surplus);
      return time && time->ticks == best->ticks;
    };
    if (low >= most_transfers_ || as_fast(low)) return low;
    std::int32_t high = most_transfers_;
    for (++low; low < high;) {
      const std::int32_t middle = low + (high - low) / 2;
      if (as_fast(middle)) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return high;
  }

  [[nodiscard]] std::int32_t most_transfers() const { return most_transfers_; }  ///< of any boundary
  [[nodiscard]] std::int32_t most_losses() const { return most_losses_; }
  [[nodiscard]] std::int32_t most_held() const { return most_held_; }
  [[nodiscard]] const std::string& most_held_by() const { return most_held_by_; }

 private:
  const ScheduleProgram& program_;
  int sends_in_flight_;
  std::vector<RankScan> scans_;
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
  const Lowering lowering(program, options.sends_in_flight);
  const bool chosen = options.slots_per_channel > 0;
  if (chosen && options.slots_per_channel < lowering.most_held()) {
    throw RefusedError(
        fmt::format("slots_per_channel is {}, but {}", options.slots_per_channel, lowering.most_held_by()));
  }
  SlotRule rule{.uniform = options.slots_per_channel,
                .surplus = chosen ? 0 : lowering.unhurried_surplus(options.extra_slots)};
  LoweredProgram lowered = lowering.with(rule);
  if (finishes(lowered)) return lowered;
  rule.losses = lowering.most_losses();
  const std::int32_t least_surplus = rule.surplus;
  if (!chosen) rule.surplus = std::max(least_surplus, lowering.most_transfers());
  lowered = lowering.with(rule);
  if (!finishes(lowered)) return lowered;
  // Boundaries first: one slot of theirs is worth thousands of the losses'.
  if (!chosen) rule.surplus = lowering.least(rule, &SlotRule::surplus, least_surplus);
  rule.losses = lowering.least(rule, &SlotRule::losses, 0);
  return lowering.with(rule);
}

std::optional<int> least_slots(const ScheduleProgram& program) {
  const Lowering lowering(program, LoweringOptions{}.sends_in_flight);
  const SlotRule rule{.uniform = lowering.most_transfers(), .losses = lowering.most_losses()};
  if (!lowering.works(rule)) return std::nullopt;
  return lowering.least(rule, &SlotRule::uniform, lowering.most_held());
}

}  // namespace stagecraft
