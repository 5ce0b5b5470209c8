#include "schedules/unit_time.h"

#include <algorithm>
#include <cstddef>
#include <limits>

namespace stagecraft {
namespace {

/// 32 bits are enough for all actions of a program one after another.
using Ticks = std::uint32_t;

constexpr Ticks kUnknown = std::numeric_limits<Ticks>::max();

/// Every rank goes on until it stands still, and again when what it waits for is known.
class Walk {
 public:
  Walk(const TransferFlow& flow, const std::vector<RankScan>& scans, std::int32_t surplus)
      : flow_(flow),
        sent_(flow.ends().size(), kUnknown),
        awaited_(sent_.size(), false),
        slot_of_(sent_.size(), kNever),
        ranks_(scans.size()),
        waits_for_slot_(scans.size()) {
    std::size_t releases = kFromTheStart + 1;
    for (std::size_t r = 0; r < scans.size(); ++r) {
      ranks_[r].first_release = releases;
      releases += flow.lanes()[r].release_at.size();
      take_slots(scans[r], r, surplus);
    }
    free_at_.assign(releases, kUnknown);
    free_at_[kFromTheStart] = 0;
  }

  std::optional<UnitTime> run() {
    for (std::size_t r = ranks_.size(); r-- > 0;) runnable_.push_back(r);
    while (!runnable_.empty()) {
      const std::size_t r = runnable_.back();
      runnable_.pop_back();
      go_on(r);
    }
    UnitTime time{.held_up = held_up_};
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      if (ranks_[r].next < flow_.lanes()[r].drain) return std::nullopt;
      time.ticks = std::max<std::int64_t>(time.ticks, ranks_[r].now);
    }
    return time;
  }

 private:
  static constexpr std::size_t kFromTheStart = 0;
  static constexpr std::uint32_t kNever = std::numeric_limits<std::uint32_t>::max();

  struct RankState {
    std::size_t next = 0;  // event
    Ticks now = 0;
    std::size_t first_release = 0;  // into free_at_
    std::size_t releases = 0;       // so far
  };
  struct Watch {
    std::uint32_t release;
    std::size_t rank;  // that waits
  };

  /// Which release each receive of a rank takes its slot over from, in the order in which they are read.
  void take_slots(const RankScan& scan, std::size_t r, std::int32_t surplus) {
    std::vector<std::int32_t> before(scan.channels.size(), 0);
    for (std::size_t i = 0; i < scan.receives.size(); ++i) {
      const Receive& receive = scan.receives[i];
      if (receive.tag.payload == Payload::loss) continue;
      const auto c = static_cast<std::size_t>(receive.channel);
      const std::int32_t release = before[c]++ - scan.channels[c].held - surplus;
      const std::size_t number = flow_.numbers().of(receive.tag);
      const TransferFlow::Ends& ends = flow_.ends()[number];
      // In malformed programs several ranks may read the same; nobody sends to the others.
      const bool meant =
          ends.receiver == static_cast<std::int32_t>(r) && ends.receive == static_cast<std::int32_t>(i);
      if (!meant) continue;
      const auto& releases = scan.channels[c].releases;  // counted from 1
      const std::size_t slot =
          release < 0 ? kFromTheStart
                      : ranks_[r].first_release +
                            static_cast<std::size_t>(releases[static_cast<std::size_t>(release)]) - 1;
      slot_of_[number] = static_cast<std::uint32_t>(slot);
    }
  }

  void go_on(std::size_t r) {
    const FlowLane& lane = flow_.lanes()[r];
    RankState& rank = ranks_[r];
    const std::size_t before = rank.releases;
    while (rank.next < lane.drain && passes(lane.events[rank.next], r)) {
      ++rank.next;
      for (; rank.releases < lane.release_at.size() && lane.release_at[rank.releases] == rank.next;
           ++rank.releases)
        free_at_[rank.first_release + rank.releases] = rank.now;
    }
    if (rank.releases == before) return;
    std::erase_if(waits_for_slot_[r], [&](const Watch& watch) {
      if (free_at_[watch.release] == kUnknown) return false;
      runnable_.push_back(watch.rank);
      return true;
    });
  }

  bool passes(const FlowEvent& event, std::size_t r) {
    Ticks& now = ranks_[r].now;
    const std::size_t number = event.number;
    switch (event.kind) {
      case FlowEvent::Kind::compute:
        now += event.number;
        return true;
      case FlowEvent::Kind::meet:
        return true;
      default:
        break;
    }
    if (number >= flow_.numbers().losses()) return true;  // they have slots of their own
    switch (event.kind) {
      case FlowEvent::Kind::send:
        sent_[number] = now;
        if (awaited_[number]) runnable_.push_back(static_cast<std::size_t>(flow_.ends()[number].receiver));
        return true;
      case FlowEvent::Kind::wait:
        if (sent_[number] == kUnknown) {
          awaited_[number] = true;
          return false;
        }
        now = std::max(now, sent_[number]);
        break;
      default:
        break;
    }
    return has_slot(number, r);
  }

  /// Goes on to when the receive of `number` is posted; if that is not known yet, `r` is woken when it is.
  bool has_slot(std::size_t number, std::size_t r) {
    const std::uint32_t release = slot_of_[number];
    if (release == kNever) return false;
    const Ticks free = free_at_[release];
    if (free == kUnknown) {
      waits_for_slot_[static_cast<std::size_t>(flow_.ends()[number].receiver)].push_back({release, r});
      return false;
    }
    Ticks& now = ranks_[r].now;
    held_up_ = held_up_ || free > now;
    now = std::max(now, free);
    return true;
  }

  const TransferFlow& flow_;
  std::vector<Ticks> sent_;             // by tag number; unknown until then
  std::vector<bool> awaited_;           // by tag number: its receiver stands still for it
  std::vector<std::uint32_t> slot_of_;  // by tag number: the release that it takes its slot over from
  std::vector<Ticks> free_at_;          // by release, rank after rank; unknown until then
  std::vector<RankState> ranks_;
  std::vector<std::vector<Watch>> waits_for_slot_;  // by the rank that releases
  std::vector<std::size_t> runnable_;
  bool held_up_ = false;
};

}  // namespace

std::optional<UnitTime> unit_time(const TransferFlow& flow, const std::vector<RankScan>& scans,
                                  std::int32_t surplus) {
  return Walk(flow, scans, surplus).run();
}

}  // namespace stagecraft
