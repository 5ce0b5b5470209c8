#include "schedules/unit_time.h"

#include <algorithm>

namespace stagecraft {
namespace {

constexpr std::int32_t kNone = -1;

using Ticks = std::int64_t;

Ticks ticks_of(Op op) { return !is_compute(op) ? 0 : op == Op::backward ? 2 : 1; }

class Walk {
 public:
  Walk(const ScheduleProgram& program, const std::vector<RankScan>& scans, std::int32_t surplus,
       int sends_in_flight)
      : program_(program),
        scans_(scans),
        sends_in_flight_(static_cast<std::size_t>(sends_in_flight)),
        micro_batches_(static_cast<std::size_t>(program.micro_batches())),
        receive_of_(2 * micro_batches_ * static_cast<std::size_t>(program.placement.stages()), kNone),
        ranks_(scans.size()) {
    for (std::size_t r = 0; r < scans.size(); ++r) {
      RankState& rank = ranks_[r];
      rank.channels.resize(scans[r].channels.size());
      rank.transfers.resize(scans[r].receives.size());
      for (std::size_t c = 0; c < rank.channels.size(); ++c) {
        rank.channels[c].slots =
            static_cast<std::size_t>(scans[r].channels[c].held) + static_cast<std::size_t>(surplus);
      }
      for (std::size_t i = 0; i < rank.transfers.size(); ++i) {
        const Receive& receive = scans[r].receives[i];
        if (receive.tag.payload == Payload::loss) continue;
        rank.transfers[i].number = rank.channels[static_cast<std::size_t>(receive.channel)].receives++;
        // Malformed programs have actions on ranks that do not hold the stage; nobody sends there.
        const Rank reader = program.placement.rank_of(receive.tag.to, receive.tag.micro_batch);
        if (reader == Rank{r}) receive_of_[key(receive.tag)] = static_cast<std::int32_t>(i);
      }
    }
  }

  std::optional<UnitTime> run() {
    // Up and down the ranks in turn: activations go one way, gradients the other.
    for (bool moved = true, up = true; moved; up = !up) {
      moved = false;
      for (std::size_t i = 0; i < ranks_.size(); ++i) {
        const std::size_t r = up ? i : ranks_.size() - 1 - i;
        while (act(r)) moved = true;
      }
    }
    UnitTime time{.held_up = held_up_};
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      if (ranks_[r].next < program_.ranks[r].size()) return std::nullopt;
      time.ticks = std::max(time.ticks, ranks_[r].now);
    }
    return time;
  }

 private:
  struct Transfer {
    std::size_t number = 0;  // in its channel
    Ticks sent = kNone;      // unknown yet
  };
  struct ChannelState {
    std::size_t slots = 0;
    std::size_t receives = 0;
    std::vector<Ticks> released;  // in the receiver's order
  };
  struct RankState {
    std::size_t next = 0;
    Ticks now = 0;
    bool computed = false;  // the next action is over but for its send
    std::vector<ChannelState> channels;
    std::vector<Transfer> transfers;
    std::vector<std::pair<SlotInfo, std::vector<Tag>>> under_way;
  };

  [[nodiscard]] std::size_t key(const Tag& tag) const {
    return (2 * tag.to.index() + (tag.payload == Payload::gradient ? 1 : 0)) * micro_batches_ +
           tag.micro_batch.index();
  }

  /// When the transfer's receive is posted; nothing as long as the slot it waits for is taken.
  [[nodiscard]] std::optional<Ticks> posted(std::size_t receiver, std::size_t transfer) const {
    const RankState& rank = ranks_[receiver];
    const auto channel = static_cast<std::size_t>(scans_[receiver].receives[transfer].channel);
    const std::size_t number = rank.transfers[transfer].number;
    const ChannelState& c = rank.channels[channel];
    if (number < c.slots) return 0;
    const std::size_t release = number - c.slots;
    return release < c.released.size() ? std::optional(c.released[release]) : std::nullopt;
  }

  /// Carries out the next action of a rank as far as it can be.
  bool act(std::size_t r) {
    RankState& rank = ranks_[r];
    const auto& list = program_.ranks[r];
    if (rank.next == list.size()) return false;
    const Action& action = list[rank.next];
    bool moved = false;
    if (!rank.computed) {
      const std::optional<Ticks> ready = inputs_ready(r);
      if (!ready) return false;
      rank.now = *ready + ticks_of(action.op);
      rank.computed = moved = true;
      release(r);
    }
    if (!send(r, action)) return moved;
    rank.computed = false;
    ++rank.next;
    return true;
  }

  [[nodiscard]] std::optional<Ticks> inputs_ready(std::size_t r) {
    const RankState& rank = ranks_[r];
    Ticks ready = rank.now;
    for (const std::int32_t i : scans_[r].reads(rank.next)) {
      const auto transfer = static_cast<std::size_t>(i);
      const Receive& receive = scans_[r].receives[transfer];
      if (receive.tag.payload == Payload::loss || receive.first != static_cast<std::int32_t>(rank.next))
        continue;
      const std::optional<Ticks> free = posted(r, transfer);
      if (!free || rank.transfers[transfer].sent == kNone) return std::nullopt;
      ready = std::max(ready, rank.transfers[transfer].sent);
      held_up_ = held_up_ || *free > ready;
      ready = std::max(ready, *free);
    }
    return ready;
  }

  void release(std::size_t r) {
    RankState& rank = ranks_[r];
    for (const std::int32_t i : scans_[r].reads(rank.next)) {
      const Receive& receive = scans_[r].receives[static_cast<std::size_t>(i)];
      if (receive.tag.payload == Payload::loss || receive.last != static_cast<std::int32_t>(rank.next))
        continue;
      rank.channels[static_cast<std::size_t>(receive.channel)].released.push_back(rank.now);
    }
  }

  /// Starts what the action sends; false while too many sends before it have found no slot.
  bool send(std::size_t r, const Action& action) {
    if (!within(program_, action) || !is_compute(action.op)) return true;
    const Tag tag = sent_after(program_, Rank{r}, action);
    if (!tag.from.valid()) return true;
    RankState& rank = ranks_[r];
    auto& queue = outstanding(rank, tag);
    if (queue.size() == sends_in_flight_) {
      const auto [receiver, transfer] = end_of(queue.front());
      const std::optional<Ticks> taken = transfer ? posted(receiver, *transfer) : std::nullopt;
      if (!taken) return false;
      held_up_ = held_up_ || *taken > rank.now;
      rank.now = std::max(rank.now, *taken);
      queue.erase(queue.begin());
    }
    const auto [receiver, transfer] = end_of(tag);
    if (transfer) ranks_[receiver].transfers[*transfer].sent = rank.now;
    queue.push_back(tag);
    return true;
  }

  [[nodiscard]] std::pair<std::size_t, std::optional<std::size_t>> end_of(const Tag& tag) const {
    const std::size_t receiver = program_.placement.rank_of(tag.to, tag.micro_batch).index();
    const std::int32_t receive = receive_of_[key(tag)];
    return {receiver, receive == kNone ? std::nullopt : std::optional(static_cast<std::size_t>(receive))};
  }

  static std::vector<Tag>& outstanding(RankState& rank, const Tag& tag) {
    const SlotInfo channel{tag.payload, tag.from, tag.to, tag.index};
    for (auto& [known, tags] : rank.under_way) {
      if (known == channel) return tags;
    }
    return rank.under_way.emplace_back(channel, std::vector<Tag>{}).second;
  }

  const ScheduleProgram& program_;
  const std::vector<RankScan>& scans_;
  std::size_t sends_in_flight_;
  std::size_t micro_batches_;
  std::vector<std::int32_t>
      receive_of_;  // (stage, activation or gradient, micro-batch) -> receive of its rank
  std::vector<RankState> ranks_;
  bool held_up_ = false;
};

}  // namespace

std::optional<UnitTime> unit_time(const ScheduleProgram& program, const std::vector<RankScan>& scans,
                                  std::int32_t surplus, int sends_in_flight) {
  return Walk(program, scans, surplus, sends_in_flight).run();
}

}  // namespace stagecraft
