#include "schedules/transfer_flow.h"

#include "schedules/send_window.h"

namespace stagecraft {
namespace {

std::uint32_t ticks_of(Op op) {
  if (!is_compute(op) || op == Op::recompute) return 0;
  return op == Op::backward ? 2 : 1;
}

/// Appends to a lane. Computations that nothing stands between are one.
class LaneWriter {
 public:
  explicit LaneWriter(FlowLane& lane) : lane_(lane) {}

  void add(FlowEvent::Kind kind, std::size_t number) {
    lane_.events.push_back({kind, static_cast<std::uint32_t>(number)});
  }
  void compute(std::uint32_t ticks) {
    if (ticks == 0) return;
    auto& events = lane_.events;
    const bool released = !lane_.release_at.empty() && lane_.release_at.back() == events.size();
    if (!released && !events.empty() && events.back().kind == FlowEvent::Kind::compute) {
      events.back().number += ticks;
    } else {
      add(FlowEvent::Kind::compute, ticks);
    }
  }
  void release() { lane_.release_at.push_back(static_cast<std::uint32_t>(lane_.events.size())); }

 private:
  FlowLane& lane_;
};

}  // namespace

TransferFlow::TransferFlow(const ScheduleProgram& program, const std::vector<RankScan>& scans,
                           int sends_in_flight)
    : numbers_(program), lanes_(program.ranks.size()), ends_(numbers_.size()) {
  for (std::size_t r = 0; r < scans.size(); ++r) {
    for (std::size_t i = 0; i < scans[r].receives.size(); ++i) {
      Ends& ends = ends_[numbers_.of(scans[r].receives[i].tag)];
      ends.receiver = static_cast<std::int32_t>(r);
      ends.receive = static_cast<std::int32_t>(i);
    }
  }
  Collectives collectives;
  for (std::size_t r = 0; r < scans.size(); ++r)
    add_lane(program, scans[r], Rank{r}, sends_in_flight, collectives);
}

void TransferFlow::add_lane(const ScheduleProgram& program, const RankScan& scan, Rank rank,
                            int sends_in_flight, Collectives& collectives) {
  using Kind = FlowEvent::Kind;
  const auto& list = program.ranks[rank.index()];
  FlowLane& lane = lanes_[rank.index()];
  lane.release_at.reserve(scan.receives.size());
  lane.events.reserve(2 * (list.size() + scan.receives.size()));
  LaneWriter writer(lane);
  SendWindow window(sends_in_flight);
  std::map<std::tuple<Op, StageId, Group>, int> occurrences;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const Action& action = list[i];
    const auto here = static_cast<std::int32_t>(i);
    for (const std::int32_t r : scan.reads(i)) {
      const Receive& receive = scan.receives[static_cast<std::size_t>(r)];
      if (receive.first == here) writer.add(Kind::wait, numbers_.of(receive.tag));
    }
    if (ends_send(action)) {
      if (const Tag sent = activation_after(action); window.finish(sent))
        writer.add(Kind::wait_send, numbers_.of(sent));
    }
    if (action.op == Op::reduce || action.op == Op::agree_norm) {
      const int nth = occurrences[{action.op, action.stage, action.group}]++;
      const auto next = static_cast<std::uint32_t>(members_.size());
      const auto [known, fresh] = collectives.try_emplace({action.op, action.stage, action.group, nth}, next);
      if (fresh) members_.push_back(0);
      ++members_[known->second];
      writer.add(Kind::meet, known->second);
    }
    writer.compute(ticks_of(action.op));
    for (const std::int32_t r : scan.reads(i)) {
      if (scan.receives[static_cast<std::size_t>(r)].last == here) writer.release();
    }
    if (!scan.sends(i)) continue;
    const Tag sent = scan.sent_by(action);
    if (const auto oldest = window.start(sent)) writer.add(Kind::wait_send, numbers_.of(*oldest));
    Ends& ends = ends_[numbers_.of(sent)];
    if (ends.sender >= 0) continue;  // sent twice: the second is nobody's
    ends.sender = rank.value;
    writer.add(Kind::send, numbers_.of(sent));
  }
  lane.drain = lane.events.size();
  for (const Tag& tag : window.drain()) writer.add(Kind::wait_send, numbers_.of(tag));
}

}  // namespace stagecraft
