#include "schedules/lowering/transfer_script.h"

#include "base/error.h"

namespace stagecraft {

/// The walk's sink: writes one rank's events.
class TransferScript::EventSink {
  using Kind = TransferEvent::Kind;

 public:
  EventSink(TransferScript& script, Rank rank, std::span<const Action> list)
      : script_(script), lane_(script.lanes_[rank.index()]), rank_(rank), list_(list) {
    lane_.events.clear();
  }

  void wait_receive(std::int32_t r) {
    add(Kind::wait_receive, lane_.transfers.receives[static_cast<std::size_t>(r)].transfer);
  }
  void act(std::size_t index) {
    const Action& action = list_[index];
    if (is_compute(action.op)) lane_.events.push_back({Kind::compute, action.op});
    if (action.op == Op::reduce || action.op == Op::tie || action.op == Op::agree_norm) meet(action);
  }
  void release(std::int32_t) { add(Kind::release, 0); }
  void start_send(std::uint32_t transfer) {
    std::int32_t& sender = script_.ends_[transfer].sender;
    if (sender >= 0) return;  // sent twice: the second is nobody's
    sender = rank_.value;
    add(Kind::start_send, transfer);
  }
  void wait_send(std::uint32_t transfer) { add(Kind::wait_send, transfer); }
  void drain() { lane_.drain = lane_.events.size(); }

 private:
  void add(Kind kind, std::uint32_t operand) { lane_.events.push_back({kind, Op::forward, operand}); }
  void meet(const Action& action) {
    const std::int32_t of = action.op == Op::tie ? action.tie.value : action.stage.value;
    const int nth = occurrences_[{action.op, of, action.group}]++;
    const auto next = static_cast<std::uint32_t>(script_.members_.size());
    const auto [known, fresh] = script_.collectives_.try_emplace({action.op, of, action.group, nth}, next);
    if (fresh) script_.members_.push_back(0);
    ++script_.members_[known->second];
    add(Kind::meet, known->second);
  }

  TransferScript& script_;
  Lane& lane_;
  Rank rank_;
  std::span<const Action> list_;
  std::map<std::tuple<Op, std::int32_t, Group>, int>
      occurrences_;  // the number: of a stage, or a tied weight
};

TransferScript::TransferScript(const ProgramHeader& header, int sends_in_flight)
    : header_(header),
      numbers_(header),
      scan_(header),
      window_(numbers_, sends_in_flight),
      lanes_(static_cast<std::size_t>(header.placement.world())),
      before_(lanes_.size()),
      first_release_(lanes_.size() + 1),
      ends_(numbers_.size()) {}

TransferScript::TransferScript(const ScheduleProgram& program, int sends_in_flight)
    : TransferScript(static_cast<const ProgramHeader&>(program), sends_in_flight) {
  for (std::size_t r = 0; r < program.ranks.size(); ++r) lay(Rank{r}, program.ranks[r]);
}

void TransferScript::lay(Rank rank, std::span<const Action> list) {
  Lane& lane = lanes_[rank.index()];
  for (const TransferEvent& event : lane.events) {
    if (event.kind == TransferEvent::Kind::start_send) ends_[event.operand].sender = -1;
  }
  std::swap(lane, before_[rank.index()]);
  scan_.scan(rank, list, lane.transfers);
  const std::size_t releases = first_release_[rank.index()] + lane.transfers.receives.size();
  STAGECRAFT_CHECK(before_[rank.index()].laid == 0 || releases == first_release_[rank.index() + 1],
                   "a rank laid again with other receives");
  first_release_[rank.index() + 1] = releases;
  for (const Receive& receive : lane.transfers.receives) ends_[receive.transfer].receiver = rank.value;
  lane.laid = ++times_laid_;
  EventSink sink(*this, rank, list);
  walk_rank(lane.transfers, window_, sink);
}

void TransferScript::swap_back(Rank rank) { std::swap(lanes_[rank.index()], before_[rank.index()]); }

}  // namespace stagecraft
