#include "schedules/lowering/transfer_run.h"

namespace stagecraft {

bool ReceivePosts::set(const std::vector<PostOrder>& orders, const SlotCounts& slots) {
  for (std::size_t r = 0; r < script_.ranks(); ++r) {
    if (!set(r, orders[r], slots[r])) return false;
  }
  return true;
}

void ReceivePosts::set(std::int32_t surplus) {
  for (std::size_t r = 0; r < script_.ranks(); ++r) {
    if (surplus == surplus_ && laid_[r] == script_.laid(r)) continue;
    std::vector<std::int32_t> slots;
    for (const Channel& channel : script_.transfers(r).channels) slots.push_back(channel.slots_with(surplus));
    set(r, {}, std::move(slots));
    laid_[r] = script_.laid(r);
  }
  surplus_ = surplus;
}

bool ReceivePosts::set(std::size_t rank, const PostOrder& order, std::vector<std::int32_t> slots) {
  const RankTransfers& transfers = script_.transfers(rank);
  const auto plan = post_plan(transfers, order, std::move(slots));
  for (std::size_t i = 0; i < plan.size(); ++i) {
    const auto before = static_cast<std::size_t>(plan[i]);
    condition_of_[transfers.receives[i].transfer] =
        static_cast<std::uint32_t>(before == 0 ? start(script_) : first_release(script_, rank) + before - 1);
  }
  return posted_too_late(transfers, plan) < 0;
}

NoClock::NoClock(const TransferScript& script, const TransportRules& rules, const CostTable* costs)
    : TransferRun(script, ReceivePosts::start(script)), sends_(rules.sends) {
  if (sends_ != TransportRules::Sends::eager) return;
  room_of_.resize(script.numbers().size());
  for (std::size_t r = 0; r < script.ranks(); ++r) {
    EagerBuffers buffers(rules, costs);
    for (const TransferEvent& event : script.events(r)) {
      if (event.kind != TransferEvent::Kind::start_send || script.ends(event.operand).receiver < 0) continue;
      auto& [begin, end] = room_of_[event.operand];
      begin = room_.size();
      buffers.send(Rank{script.ends(event.operand).receiver}, script.numbers().tag(event.operand),
                   static_cast<std::int32_t>(event.operand), room_);
      end = room_.size();
    }
  }
}

bool NoClock::may_send(std::uint32_t rank, std::uint32_t transfer) {
  if (sends_ == TransportRules::Sends::launched) return true;
  if (sends_ == TransportRules::Sends::rendezvous) return await(rank, posted(transfer));
  const auto [begin, end] = room_of_[transfer];
  for (std::size_t i = begin; i < end; ++i) {
    if (!await(rank, posted(static_cast<std::uint32_t>(room_[i])))) return false;
  }
  return true;
}

bool NoClock::meet(std::uint32_t rank, std::uint32_t collective) {
  const std::size_t all = met(collective);
  if (!holds(all) && ++came_[collective] == script().members()[collective]) happens(all, now(rank));
  return await(rank, all);
}

std::optional<TickClock::Moment> TickClock::time(std::int32_t surplus) {
  if (!run(surplus)) return std::nullopt;
  Moment last = 0;
  for (std::size_t r = 0; r < script().ranks(); ++r) last = std::max(last, now(r));
  return last;
}

}  // namespace stagecraft
