#include "schedules/simulator/lost_time.h"

#include <algorithm>

namespace stagecraft::simulator {

void LostTimeHooks::append(std::size_t rank, double begin, double end, Cause cause) {
  if (!(end > begin)) return;
  auto& pieces = pieces_[rank];
  if (!pieces.empty() && pieces.back().cause == cause) {
    pieces.back().end = end;
  } else {
    pieces.push_back({end, cause});
  }
}

void LostTimeHooks::lose(std::size_t rank, double begin, double end, Cause cause) {
  if (!(end > begin)) return;
  lost_[rank][cause] += end - begin;
  append(rank, begin, end, cause);
}

void LostTimeHooks::follow(std::size_t rank, double begin, double end, std::size_t other) {
  const auto& pieces = pieces_[other];
  auto piece = std::upper_bound(pieces.begin(), pieces.end(), begin,
                                [](double time, const Piece& p) { return time < p.end; });
  // What `other` is waited for stands behind its pieces, so they reach to `end`, but for a rounding.
  for (; begin < end; ++piece) {
    const bool last = piece == pieces.end();
    const double until = last ? end : std::min(end, piece->end);
    lose(rank, begin, until, last ? work : piece->cause);
    begin = until;
    if (last) break;
  }
}

void LostTimeHooks::computed(const Instruction& i, double begin, double end) {
  append(static_cast<std::size_t>(i.rank), begin, end, work);
}

void LostTimeHooks::sent(const Instruction& i, const Sending& sending) {
  const auto transfer = static_cast<std::size_t>(i.operand);
  const auto route = static_cast<std::size_t>(code_.transfer_route[transfer]);
  double& lane = lane_free_[static_cast<std::size_t>(code_.routes[route].lane)];
  double begin = std::max(sending.started, lane);
  const Prices::Cards cards = prices_.card_count > 0 ? prices_.cards[route] : Prices::Cards{};
  if (cards.out >= 0) {
    begin = std::max({begin, card_free_[static_cast<std::size_t>(cards.out)],
                      card_free_[static_cast<std::size_t>(cards.in)]});
  }
  // The moment itself where no slot was lacking, not one that rounds differently.
  const double end =
      begin < sending.begin ? std::min(sending.end, begin + (sending.end - sending.begin)) : sending.end;
  lane = end;
  if (cards.out >= 0) {
    card_free_[static_cast<std::size_t>(cards.out)] = card_free_[static_cast<std::size_t>(cards.in)] = end;
  }
  sendings_[transfer] = {sending.started, end};
}

void LostTimeHooks::waited(const Instruction& i, double begin, double end) {
  const auto rank = static_cast<std::size_t>(i.rank);
  const Sent& sending = sendings_[static_cast<std::size_t>(i.operand)];
  const double slot = std::clamp(sending.end_with_slot, begin, end);
  if (i.account == wait_send) {
    lose(rank, begin, slot, blocked_send);
  } else {
    const double started = std::clamp(sending.started, begin, slot);
    const std::size_t route =
        static_cast<std::size_t>(code_.transfer_route[static_cast<std::size_t>(i.operand)]);
    follow(rank, begin, started, code_.routes[route].sender.index());
    lose(rank, started, slot, transfer);
  }
  lose(rank, slot, end, memory);
}

void LostTimeHooks::met(const Collective& collective, const std::vector<double>& clock, double last,
                        double end) {
  const Rank latest = *std::max_element(collective.members.begin(), collective.members.end(),
                                        [&](Rank a, Rank b) { return clock[a.index()] < clock[b.index()]; });
  for (const Rank member : collective.members) {
    follow(member.index(), clock[member.index()], last, latest.index());
    lose(member.index(), last, end, barrier);
  }
}

const std::vector<Causes>& LostTimeHooks::finish(const std::vector<double>& clock) {
  const auto latest = std::max_element(clock.begin(), clock.end());
  for (std::size_t r = 0; r < clock.size(); ++r) {
    follow(r, clock[r], *latest, static_cast<std::size_t>(latest - clock.begin()));
  }
  return lost_;
}

}  // namespace stagecraft::simulator
