#include "schedules/simulator/critical_path.h"

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
      joined_(code.collectives.size(), kNothing),
      joined_by_(code.collectives.size()) {
  links_.reserve(code.order.size());
}

std::int32_t PathHooks::add(Link::Kind kind, std::size_t operand, std::int32_t before, Rank from) {
  links_.push_back({kind, static_cast<std::int32_t>(operand), before, from});
  return static_cast<std::int32_t>(links_.size()) - 1;
}

void PathHooks::computed(const Instruction& i, double begin, double end) {
  if (!(end > begin)) return;
  std::int32_t& rank = rank_[at(i.rank)];
  rank = add(Link::Kind::compute, at(i.operand), rank, Rank{i.rank});
}

void PathHooks::posted(const Instruction& i) { posted_[at(i.operand)] = rank_[at(i.rank)]; }

void PathHooks::joined(const Instruction& i) {
  joined_[at(i.operand)] = rank_[at(i.rank)];
  joined_by_[at(i.operand)] = Rank{i.rank};
}

void PathHooks::sent(const Instruction& i, const Sending& sending) {
  const std::size_t transfer = at(i.operand);
  std::int32_t& lane = lane_[code_.lane_of(i.operand)];
  std::int32_t before = lane;
  Rank from;
  if (sending.begin == sending.started) {
    before = rank_[at(i.rank)];
    from = Rank{i.rank};
  } else if (sending.begin == state_.posted[transfer]) {
    before = posted_[transfer];
    from = code_.route_of(i.operand).receiver;
  }
  lane = arrived_[transfer] = add(Link::Kind::transfer, code_.route_number(i.operand), before, from);
}

void PathHooks::waited(const Instruction& i, double, double) { rank_[at(i.rank)] = arrived_[at(i.operand)]; }

void PathHooks::reduced(const Instruction& i, double, double, Rank, double) {
  rank_[at(i.rank)] =
      add(Link::Kind::collective, at(i.operand), joined_[at(i.operand)], joined_by_[at(i.operand)]);
}

void PathHooks::met(const Collective& collective, const std::vector<double>& clock, double last, double) {
  std::int32_t before = kNothing;
  Rank from;
  for (const Rank member : collective.members) {
    if (clock[member.index()] != last) continue;
    before = rank_[member.index()];
    from = member;
  }
  const auto number = static_cast<std::size_t>(&collective - code_.collectives.data());
  const std::int32_t met = add(Link::Kind::collective, number, before, from);
  for (const Rank member : collective.members) rank_[member.index()] = met;
}

std::int32_t PathHooks::last_link() const {
  const auto last = std::max_element(state_.clock.begin(), state_.clock.end());
  return rank_[static_cast<std::size_t>(last - state_.clock.begin())];
}

CriticalPath PathHooks::longest() const {
  CriticalPath path = between(kNothing, {last_link()});
  path.length = Seconds{std::ranges::max(state_.clock)};
  return path;
}

Circuit PathHooks::turn() const {
  // Ranks, then lanes: where each one's chain has come from.
  const std::size_t ranks = rank_.size();
  std::vector<int> passed(ranks + lane_.size(), -1);
  std::vector<std::int32_t> links;
  auto place = static_cast<std::size_t>(std::ranges::max_element(state_.clock) - state_.clock.begin());
  while (passed[place] < 0) {
    passed[place] = static_cast<int>(links.size());
    std::int32_t link = links.emplace_back(place < ranks ? rank_[place] : lane_[place - ranks]);
    if (link == kNothing) break;  // nothing took time there
    while (links_[at(link)].before != kNothing) link = links_[at(link)].before;
    const Link& first = links_[at(link)];
    place = first.from.valid() ? first.from.index() : ranks + at(code_.routes[at(first.operand)].lane);
  }
  links.erase(links.begin(), links.begin() + passed[place]);
  return {between(kNothing, links), static_cast<int>(links.size())};
}

std::optional<Circuit> PathHooks::circuit() const {
  // Where the chain goes from one step into the next, from the last on: the rank, and the link that ends there.
  struct Crossing {
    Rank rank;
    std::int32_t link;
    std::size_t step;
  };
  std::vector<Crossing> crossings;
  std::size_t step = step_ends_.size() - 1;  // that `link` lies in
  for (std::int32_t link = last_link(); link != kNothing; link = links_[at(link)].before) {
    const std::int32_t before = links_[at(link)].before;
    if (step == 0 || before == kNothing || at(before) >= step_ends_[step - 1]) continue;
    while (step > 0 && at(before) < step_ends_[step - 1]) --step;
    for (const Crossing& later : crossings) {
      if (later.rank != links_[at(link)].from || !later.rank.valid()) continue;
      return Circuit{between(before, {later.link}), static_cast<int>(later.step - step)};
    }
    crossings.push_back({links_[at(link)].from, before, step});
  }
  return std::nullopt;
}

CriticalPath PathHooks::between(std::int32_t first, const std::vector<std::int32_t>& links) const {
  std::vector<Computing> computing(code_.stage_replicas.size());
  std::vector<int> transfers(code_.routes.size());
  std::vector<int> meetings(code_.collectives.size());
  for (std::int32_t link : links) {
    for (; link != first; link = links_[at(link)].before) {
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
  }
  CriticalPath path;
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
