#include "stagecraft/schedules/simulator/critical_path.h"

#include <algorithm>
#include <array>
#include <cstddef>

namespace stagecraft::simulator {
namespace {

constexpr std::int32_t kNothing = -1;

using Computing = CriticalPath::Computing;

/// Where each Part is counted.
constexpr std::array<int Computing::*, part_count> kCounts{
    &Computing::forwards,  &Computing::recomputes,  &Computing::last_recomputes,
    &Computing::backwards, &Computing::input_parts, &Computing::weight_parts,
    &Computing::steps};

}  // namespace

PathHooks::PathHooks(const Instructions& code, const RunState& state)
    : code_(code),
      state_(state),
      rank_(state.clock.size(), kNothing),
      lane_(code.lanes, kNothing),
      posted_(code.transfer_route.size(), kNothing),
      arrived_(code.transfer_route.size(), kNothing),
      joined_(code.collectives.size(), kNothing) {
  links_.reserve(code.order.size());
}

std::int32_t PathHooks::add(Link::Kind kind, std::size_t operand, std::int32_t before) {
  links_.push_back({kind, static_cast<std::int32_t>(operand), before});
  return static_cast<std::int32_t>(links_.size()) - 1;
}

void PathHooks::computed(const Instruction& i, double begin, double end) {
  if (!(end > begin)) return;
  std::int32_t& rank = rank_[at(i.rank)];
  rank = add(Link::Kind::compute, at(i.operand), rank);
}

void PathHooks::posted(const Instruction& i) { posted_[at(i.operand)] = rank_[at(i.rank)]; }

void PathHooks::joined(const Instruction& i) { joined_[at(i.operand)] = rank_[at(i.rank)]; }

void PathHooks::sent(const Instruction& i, const Sending& sending) {
  const std::size_t transfer = at(i.operand);
  std::int32_t& lane = lane_[code_.lane_of(i.operand)];
  std::int32_t before = lane;
  if (sending.begin == sending.started) {
    before = rank_[at(i.rank)];
  } else if (sending.begin == state_.posted[transfer]) {
    before = posted_[transfer];
  }
  lane = arrived_[transfer] = add(Link::Kind::transfer, code_.route_number(i.operand), before);
}

void PathHooks::waited(const Instruction& i, double, double) { rank_[at(i.rank)] = arrived_[at(i.operand)]; }

void PathHooks::reduced(const Instruction& i, double, double, Rank, double) {
  rank_[at(i.rank)] = add(Link::Kind::collective, at(i.operand), joined_[at(i.operand)]);
}

void PathHooks::met(const Collective& collective, const std::vector<double>& clock, double last, double) {
  std::int32_t before = kNothing;
  for (const Rank member : collective.members) {
    if (clock[member.index()] == last) before = rank_[member.index()];
  }
  const auto number = static_cast<std::size_t>(&collective - code_.collectives.data());
  const std::int32_t met = add(Link::Kind::collective, number, before);
  for (const Rank member : collective.members) rank_[member.index()] = met;
}

CriticalPath PathHooks::longest() const {
  const auto last = std::max_element(state_.clock.begin(), state_.clock.end());
  return to(Rank{static_cast<std::size_t>(last - state_.clock.begin())});
}

CriticalPath PathHooks::to(Rank rank) const {
  std::vector<Computing> computing(code_.stage_replicas.size());
  std::vector<int> transfers(code_.routes.size());
  std::vector<int> meetings(code_.collectives.size());
  std::int32_t link = rank_[rank.index()];
  for (; link != kNothing; link = links_[at(link)].before) {
    const std::size_t operand = at(links_[at(link)].operand);
    switch (links_[at(link)].kind) {
      case Link::Kind::compute:
        ++(computing[operand / part_count].*kCounts[operand % part_count]);
        break;
      case Link::Kind::transfer:
        ++transfers[operand];
        break;
      case Link::Kind::collective:
        ++meetings[operand];
        break;
    }
  }
  CriticalPath path;
  path.length = Seconds{state_.clock[rank.index()]};
  for (std::size_t n = 0; n < computing.size(); ++n) {
    Computing& c = computing[n];
    if (c == Computing{}) continue;
    c.stage = code_.stage_replicas[n].stage;
    c.rank = code_.stage_replicas[n].rank;
    path.computing.push_back(c);
  }
  for (std::size_t n = 0; n < transfers.size(); ++n) {
    if (transfers[n] == 0) continue;
    const Route& route = code_.routes[n];
    path.moving.push_back({route.payload, route.from, route.to, route.sender, route.receiver, transfers[n]});
  }
  for (std::size_t n = 0; n < meetings.size(); ++n) {
    if (meetings[n] > 0)
      path.meeting.push_back(
          {code_.collectives[n].stage, meetings[n], code_.collectives[n].tie, code_.collectives[n].holders});
  }
  return path;
}

}  // namespace stagecraft::simulator
