#include "schedules/simulator/lost_time.h"

#include <algorithm>

namespace stagecraft::simulator {

void LostTimeHooks::append(Row& row, double until, Cause cause) {
  if (!row.empty() && !(until > row.back().end)) return;
  if (!row.empty() && row.back().cause == cause) {
    row.back().end = until;
  } else {
    row.push_back({until, cause});
  }
}

void LostTimeHooks::lose(std::size_t rank, double begin, double end, Cause cause) {
  if (!(end > begin)) return;
  lost_[rank][cause] += end - begin;
  append(ranks_[rank], end, cause);
}

void LostTimeHooks::follow(std::size_t rank, double begin, double end, const Row& row, Cause moving) {
  auto piece = std::upper_bound(row.begin(), row.end(), begin,
                                [](double time, const Piece& p) { return time < p.end; });
  for (; begin < end && piece != row.end(); ++piece) {
    const double until = std::min(end, piece->end);
    lose(rank, begin, until, piece->cause == transfer ? moving : piece->cause);
    begin = until;
  }
}

void LostTimeHooks::computed(const Instruction& i, double /*begin*/, double end) {
  append(ranks_[at(i.rank)], end, work);
}

void LostTimeHooks::sent(const Instruction& i, const Sending& sending) {
  const std::size_t route = code_.route_number(i.operand);
  Row& lane = lanes_[code_.lane_of(i.operand)];
  double free = std::max(sending.started, lane.empty() ? 0 : lane.back().end);
  if (prices_.shared_link_count > 0 && prices_.shared_links[route].out >= 0) {
    double& out = shared_link_free_[at(prices_.shared_links[route].out)];
    double& in = shared_link_free_[at(prices_.shared_links[route].in)];
    free = std::max({free, out, in});
    out = in = sending.end;
  }
  append(lane, free, transfer);  // behind others on a shared link, if at all
  append(lane, sending.begin, memory);
  append(lane, sending.end, transfer);
  sent_[at(i.operand)] = {sending.started, sending.begin, sending.end, free};
}

void LostTimeHooks::waited(const Instruction& i, double begin, double end) {
  const std::size_t rank = at(i.rank);
  const Sent& sent = sent_[at(i.operand)];
  const Row& lane = lanes_[code_.lane_of(i.operand)];
  // Of the delay, what this wait does not see while it lasts.
  const double seen = std::max(0.0, sent.begin - std::max(begin, sent.free));
  const double late = std::clamp(end - ((sent.begin - sent.free) - seen), begin, end);
  if (i.account == wait_send) {
    follow(rank, begin, late, lane, blocked_send);
  } else {
    const double started = std::clamp(sent.started, begin, late);
    follow(rank, begin, started, ranks_[code_.route_of(i.operand).sender.index()]);
    follow(rank, started, late, lane, transfer);
  }
  lose(rank, late, end, memory);
}

void LostTimeHooks::reduced(const Instruction& i, double begin, double joined, Rank latest, double end) {
  const std::size_t rank = at(i.rank);
  const double under_way = std::clamp(joined, begin, end);
  follow(rank, begin, under_way, ranks_[latest.index()]);
  lose(rank, under_way, end, barrier);
}

void LostTimeHooks::met(const Collective& collective, const std::vector<double>& clock, double last,
                        double end) {
  const Rank latest = *std::max_element(collective.members.begin(), collective.members.end(),
                                        [&](Rank a, Rank b) { return clock[a.index()] < clock[b.index()]; });
  for (const Rank member : collective.members) {
    follow(member.index(), clock[member.index()], last, ranks_[latest.index()]);
    lose(member.index(), last, end, barrier);
  }
}

const std::vector<Causes>& LostTimeHooks::finish(const std::vector<double>& clock) {
  const auto latest = std::max_element(clock.begin(), clock.end());
  const Row& row = ranks_[static_cast<std::size_t>(latest - clock.begin())];
  for (std::size_t r = 0; r < clock.size(); ++r) follow(r, clock[r], *latest, row);
  return lost_;
}

}  // namespace stagecraft::simulator
