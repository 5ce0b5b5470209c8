#include "schedules/slot_flow.h"

#include "schedules/send_window.h"

#include <algorithm>

namespace stagecraft {

SlotFlow::SlotFlow(const ScheduleProgram& program, const std::vector<RankScan>& scans,
                   const std::vector<PostOrder>& orders, int sends_in_flight, const TransportRules& rules,
                   const CostTable* costs)
    : scans_(scans),
      orders_(orders),
      rules_(rules),
      numbers_(program),
      lanes_(program.ranks.size()),
      ends_(numbers_.size()) {
  for (std::size_t r = 0; r < scans.size(); ++r) {
    for (std::size_t i = 0; i < scans[r].receives.size(); ++i) {
      Ends& ends = ends_[numbers_.of(scans[r].receives[i].tag)];
      ends.receiver = static_cast<std::int32_t>(r);
      ends.receive = static_cast<std::int32_t>(i);
    }
  }
  Collectives collectives;
  for (std::size_t r = 0; r < scans.size(); ++r) add_lane(program, Rank{r}, sends_in_flight, collectives);
  if (rules_.sends == TransportRules::Sends::eager) fill_buffers(program, costs);
}

void SlotFlow::add_lane(const ScheduleProgram& program, Rank rank, int sends_in_flight,
                        Collectives& collectives) {
  const RankScan& scan = scans_[rank.index()];
  const auto& list = program.ranks[rank.index()];
  Lane& lane = lanes_[rank.index()];
  SendWindow window(sends_in_flight);
  std::map<std::tuple<Op, StageId, Group>, int> occurrences;
  const auto add = [&](Event::Kind kind, std::size_t number) {
    lane.events.push_back({kind, static_cast<std::uint32_t>(number)});
  };
  const auto wait_sent = [&](const Tag& tag) { add(Event::Kind::wait_send, numbers_.of(tag)); };
  const bool sends_wait_later = rules_.sends == TransportRules::Sends::launched;
  lane.release_at.reserve(scan.receives.size());
  lane.events.reserve(4 * scan.receives.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Action& action = list[i];
    const auto here = static_cast<std::int32_t>(i);
    for (const std::int32_t r : scan.reads(i)) {
      const Receive& receive = scan.receives[static_cast<std::size_t>(r)];
      if (receive.first == here) add(Event::Kind::wait, numbers_.of(receive.tag));
    }
    if (sends_wait_later && ends_send(action)) {
      if (const Tag sent = activation_after(action); window.finish(sent)) wait_sent(sent);
    }
    if (action.op == Op::reduce || action.op == Op::agree_norm) {
      const int nth = occurrences[{action.op, action.stage, action.group}]++;
      const auto next = static_cast<std::uint32_t>(members_.size());
      const auto [known, fresh] = collectives.try_emplace({action.op, action.stage, action.group, nth}, next);
      if (fresh) members_.push_back(0);
      ++members_[known->second];
      add(Event::Kind::meet, known->second);
    }
    for (const std::int32_t r : scan.reads(i)) {
      if (scan.receives[static_cast<std::size_t>(r)].last == here)
        lane.release_at.push_back(static_cast<std::uint32_t>(lane.events.size()));
    }
    const Tag sent = within(program, action) ? sent_after(program, rank, action) : Tag{};
    if (!sent.from.valid()) continue;
    if (sends_wait_later) {
      if (const auto oldest = window.start(sent)) wait_sent(*oldest);
    }
    Ends& ends = ends_[numbers_.of(sent)];
    if (ends.sender >= 0) continue;  // sent twice: the second is nobody's
    ends.sender = rank.value;
    add(Event::Kind::send, numbers_.of(sent));
  }
  for (const Tag& tag : window.drain()) wait_sent(tag);
}

void SlotFlow::fill_buffers(const ScheduleProgram& program, const CostTable* costs) {
  room_of_.resize(numbers_.size());
  for (std::size_t r = 0; r < program.ranks.size(); ++r) {
    EagerBuffers buffers(rules_, costs);
    for (const Action& action : program.ranks[r]) {
      const Tag tag = within(program, action) ? sent_after(program, Rank{r}, action) : Tag{};
      if (!tag.from.valid()) continue;
      const std::size_t number = numbers_.of(tag);
      if (ends_[number].receiver < 0 || room_of_[number].second > 0) continue;
      room_of_[number].first = room_.size();
      buffers.send(Rank{ends_[number].receiver}, tag, static_cast<std::int32_t>(number), room_);
      room_of_[number].second = room_.size();
    }
  }
}

/// One run: every rank goes on until it stands still, and again when what it waits for is done.
class SlotFlow::Run {
 public:
  Run(const SlotFlow& flow, std::vector<std::vector<std::uint32_t>> posted_at)
      : flow_(flow),
        posted_at_(std::move(posted_at)),
        cursor_(flow.lanes_.size(), 0),
        sent_(flow.ends_.size(), false),
        waits_for_send_(flow.ends_.size(), false),
        waits_for_post_(flow.lanes_.size()),
        came_(flow.members_.size(), 0),
        met_(flow.members_.size(), false),
        waiting_members_(flow.members_.size()) {}

  bool finishes() {
    for (std::size_t r = cursor_.size(); r-- > 0;) runnable_.push_back(static_cast<std::int32_t>(r));
    while (!runnable_.empty()) {
      const auto r = static_cast<std::size_t>(runnable_.back());
      runnable_.pop_back();
      const auto& events = flow_.lanes_[r].events;
      while (cursor_[r] < events.size() && passes(events[cursor_[r]], static_cast<std::int32_t>(r)))
        ++cursor_[r];
      wake_senders(r);
    }
    for (std::size_t r = 0; r < cursor_.size(); ++r) {
      if (cursor_[r] < flow_.lanes_[r].events.size()) return false;
    }
    return true;
  }

 private:
  struct Watch {
    std::uint32_t until;  ///< events of the watched rank
    std::int32_t rank;    ///< that waits
  };

  bool passes(const Event& event, std::int32_t rank) {
    const std::size_t number = event.number;
    switch (event.kind) {
      case Event::Kind::send:
        if (!may_send(number, rank)) return false;
        sent_[number] = true;
        if (waits_for_send_[number]) runnable_.push_back(flow_.ends_[number].receiver);
        return true;
      case Event::Kind::wait:
        if (sent_[number] || flow_.ends_[number].sender < 0) return true;
        waits_for_send_[number] = true;
        return false;
      case Event::Kind::wait_send:
        return posted(number, rank);
      case Event::Kind::meet:
        break;
    }
    return meets(number, rank);
  }

  bool may_send(std::size_t number, std::int32_t rank) {
    if (flow_.rules_.sends == TransportRules::Sends::launched) return true;
    if (flow_.rules_.sends == TransportRules::Sends::rendezvous) return posted(number, rank);
    const auto [begin, end] = flow_.room_of_[number];
    for (std::size_t i = begin; i < end; ++i) {
      if (!posted(static_cast<std::size_t>(flow_.room_[i]), rank)) return false;
    }
    return true;
  }

  /// Whether the receive of `number` is posted; if not, `rank` is woken when it is.
  bool posted(std::size_t number, std::int32_t rank) {
    const Ends& ends = flow_.ends_[number];
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
    if (++came_[collective] == flow_.members_[collective]) {
      met_[collective] = true;
      runnable_.insert(runnable_.end(), waiting.begin(), waiting.end());
      return true;
    }
    waiting.push_back(rank);
    return false;
  }

  const SlotFlow& flow_;
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
  for (std::size_t r = 0; r < lanes_.size(); ++r) {
    const auto plan = post_plan(scans_[r], orders_[r], slots[r]);
    if (posted_too_late(scans_[r], plan) >= 0) return false;
    auto& at = posted_at.emplace_back();
    at.reserve(plan.size());
    for (const std::int32_t releases : plan) {
      at.push_back(releases == 0 ? 0 : lanes_[r].release_at[static_cast<std::size_t>(releases) - 1]);
    }
  }
  return Run(*this, std::move(posted_at)).finishes();
}

}  // namespace stagecraft
