#include "schedules/slot_flow.h"

#include <algorithm>

namespace stagecraft {

SlotFlow::SlotFlow(const ScheduleProgram& program, const std::vector<RankScan>& scans,
                   const TransferFlow& flow, const std::vector<PostOrder>& orders,
                   const TransportRules& rules, const CostTable* costs)
    : scans_(scans), flow_(flow), orders_(orders), rules_(rules) {
  if (rules_.sends == TransportRules::Sends::eager) fill_buffers(program, costs);
}

void SlotFlow::fill_buffers(const ScheduleProgram& program, const CostTable* costs) {
  room_of_.resize(flow_.ends().size());
  for (std::size_t r = 0; r < program.ranks.size(); ++r) {
    EagerBuffers buffers(rules_, costs);
    for (std::size_t i = 0; i < program.ranks[r].size(); ++i) {
      if (!scans_[r].sends(i)) continue;
      const Tag tag = scans_[r].sent_by(program.ranks[r][i]);
      const std::size_t number = flow_.numbers().of(tag);
      const std::int32_t receiver = flow_.ends()[number].receiver;
      if (receiver < 0 || room_of_[number].second > 0) continue;
      room_of_[number].first = room_.size();
      buffers.send(Rank{receiver}, tag, static_cast<std::int32_t>(number), room_);
      room_of_[number].second = room_.size();
    }
  }
}

/// One run: every rank goes on until it stands still, and again when what it waits for is done.
class SlotFlow::Run {
 public:
  Run(const SlotFlow& slots, std::vector<std::vector<std::uint32_t>> posted_at)
      : slots_(slots),
        flow_(slots.flow_),
        launched_(slots.rules_.sends == TransportRules::Sends::launched),
        posted_at_(std::move(posted_at)),
        cursor_(flow_.lanes().size(), 0),
        sent_(flow_.ends().size(), false),
        waits_for_send_(flow_.ends().size(), false),
        waits_for_post_(flow_.lanes().size()),
        came_(flow_.members().size(), 0),
        met_(flow_.members().size(), false),
        waiting_members_(flow_.members().size()) {}

  bool finishes() {
    for (std::size_t r = cursor_.size(); r-- > 0;) runnable_.push_back(static_cast<std::int32_t>(r));
    while (!runnable_.empty()) {
      const auto r = static_cast<std::size_t>(runnable_.back());
      runnable_.pop_back();
      const auto& events = flow_.lanes()[r].events;
      while (cursor_[r] < events.size() && passes(events[cursor_[r]], static_cast<std::int32_t>(r)))
        ++cursor_[r];
      wake_senders(r);
    }
    for (std::size_t r = 0; r < cursor_.size(); ++r) {
      if (cursor_[r] < flow_.lanes()[r].events.size()) return false;
    }
    return true;
  }

 private:
  struct Watch {
    std::uint32_t until;  ///< events of the watched rank
    std::int32_t rank;    ///< that waits
  };

  bool passes(const FlowEvent& event, std::int32_t rank) {
    const std::size_t number = event.number;
    switch (event.kind) {
      case FlowEvent::Kind::send:
        if (!may_send(number, rank)) return false;
        sent_[number] = true;
        if (waits_for_send_[number]) runnable_.push_back(flow_.ends()[number].receiver);
        return true;
      case FlowEvent::Kind::wait:
        if (sent_[number] || flow_.ends()[number].sender < 0) return true;
        waits_for_send_[number] = true;
        return false;
      case FlowEvent::Kind::wait_send:
        return !launched_ || posted(number, rank);  // otherwise its start waited
      case FlowEvent::Kind::compute:
        return true;
      case FlowEvent::Kind::meet:
        break;
    }
    return meets(number, rank);
  }

  bool may_send(std::size_t number, std::int32_t rank) {
    if (launched_) return true;
    if (slots_.rules_.sends == TransportRules::Sends::rendezvous) return posted(number, rank);
    const auto [begin, end] = slots_.room_of_[number];
    for (std::size_t i = begin; i < end; ++i) {
      if (!posted(static_cast<std::size_t>(slots_.room_[i]), rank)) return false;
    }
    return true;
  }

  /// Whether the receive of `number` is posted; if not, `rank` is woken when it is.
  bool posted(std::size_t number, std::int32_t rank) {
    const TransferFlow::Ends& ends = flow_.ends()[number];
    if (ends.receiver < 0) return true;
    const auto receiver = static_cast<std::size_t>(ends.receiver);
    const std::uint32_t until = posted_at_[receiver][static_cast<std::size_t>(ends.receive)];
    if (cursor_[receiver] >= until) return true;
    waits_for_post_[receiver].push_back({until, rank});
    return false;
  }

  void wake_senders(std::size_t r) {
    std::erase_if(waits_for_post_[r], [&](const Watch& watch) {
      if (cursor_[r] < watch.until) return false;
      runnable_.push_back(watch.rank);
      return true;
    });
  }

  bool meets(std::size_t collective, std::int32_t rank) {
    if (met_[collective]) return true;
    auto& waiting = waiting_members_[collective];
    if (std::find(waiting.begin(), waiting.end(), rank) != waiting.end()) return false;  // looked at twice
    if (++came_[collective] == flow_.members()[collective]) {
      met_[collective] = true;
      runnable_.insert(runnable_.end(), waiting.begin(), waiting.end());
      return true;
    }
    waiting.push_back(rank);
    return false;
  }

  const SlotFlow& slots_;
  const TransferFlow& flow_;
  bool launched_;
  std::vector<std::vector<std::uint32_t>> posted_at_;  // by rank and receive: the events before its post
  std::vector<std::size_t> cursor_;
  std::vector<bool> sent_, waits_for_send_;
  std::vector<std::vector<Watch>> waits_for_post_;  // by the rank that posts
  std::vector<std::int32_t> came_;
  std::vector<bool> met_;
  std::vector<std::vector<std::int32_t>> waiting_members_;
  std::vector<std::int32_t> runnable_;
};

bool SlotFlow::finishes(const SlotCounts& slots) const {
  std::vector<std::vector<std::uint32_t>> posted_at;
  const auto& lanes = flow_.lanes();
  for (std::size_t r = 0; r < lanes.size(); ++r) {
    const auto plan = post_plan(scans_[r], orders_[r], slots[r]);
    if (posted_too_late(scans_[r], plan) >= 0) return false;
    auto& at = posted_at.emplace_back();
    at.reserve(plan.size());
    for (const std::int32_t releases : plan) {
      at.push_back(releases == 0 ? 0 : lanes[r].release_at[static_cast<std::size_t>(releases) - 1]);
    }
  }
  return Run(*this, std::move(posted_at)).finishes();
}

}  // namespace stagecraft
