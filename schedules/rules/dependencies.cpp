#include "schedules/rules/dependencies.h"

#include "schedules/program/transfer_numbers.h"
#include "schedules/rules/dependency_cycle.h"
#include "schedules/rules/reductions.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <tuple>
#include <utility>

namespace stagecraft {
namespace {

constexpr std::int32_t kNoAction = -1;

/// The nodes of one transfer, by their ops.
struct Ends {
  std::array<std::int32_t, 4> nodes{kNoAction, kNoAction, kNoAction, kNoAction};

  [[nodiscard]] std::int32_t& operator[](Op op) {
    return nodes[static_cast<std::size_t>(op) - static_cast<std::size_t>(Op::post_receive)];
  }
};

bool is_collective(Op op) { return op == Op::agree_norm || op == Op::reduce || op == Op::tie; }

}  // namespace

Dependencies::Dependencies(const LoweredProgram& program, const TransportRules& rules, const CostTable* costs)
    : rules_(rules), first_{0} {
  for (const auto& list : program.ranks) {
    first_.push_back(first_.back() + static_cast<std::int32_t>(list.size()));
  }
  index_ranks();
  peer_.assign(static_cast<std::size_t>(first_.back()), kNoAction);
  std::vector<Op> ops;
  match_transfers(program, ops);
  match_collectives(program, ops);
  if (rules_.sends == TransportRules::Sends::eager) fill_buffers(program, costs);
  sort(program, ops);
}

void Dependencies::index_ranks() {
  const auto blocks = (static_cast<std::size_t>(first_.back()) >> kBlockBits) + 1;
  rank_at_.reserve(blocks);
  std::int32_t rank = 0;
  for (std::size_t b = 0; b < blocks; ++b) {
    const auto node = static_cast<std::int32_t>(b << kBlockBits);
    while (static_cast<std::size_t>(rank) + 1 < first_.size() &&
           first_[static_cast<std::size_t>(rank) + 1] <= node)
      ++rank;
    rank_at_.push_back(rank);
  }
}

ActionPlace Dependencies::place(std::int32_t node) const {
  auto rank = static_cast<std::size_t>(rank_at_[static_cast<std::size_t>(node) >> kBlockBits]);
  while (first_[rank + 1] <= node) ++rank;
  return {Rank{rank}, node - first_[rank]};
}

void Dependencies::match_transfers(const LoweredProgram& program, std::vector<Op>& ops) {
  const TagNumbers numbers(program);
  std::vector<Ends> ends(numbers.size());
  const auto blame = [&](ActionPlace here, const std::string& what) {
    problems_.push_back(program.name(here) + ": " + what);
  };
  ops.reserve(peer_.size());
  program.each_action([&](ActionPlace here, const Action& action) {
    ops.push_back(action.op);
    if (!is_transfer(action.op)) return;
    const std::size_t number = numbers.of(action.tag);
    if (number == ends.size()) return blame(here, "the program has no such transfer");
    std::int32_t& end = ends[number][action.op];
    if (end != kNoAction) return blame(here, "this was done before");
    end = node(here.rank, here.at);
  });
  bool all_meet = true;
  for (Ends& e : ends) {
    const auto connect = [&](Op from, Op to) {
      if (e[from] != kNoAction) peer_[static_cast<std::size_t>(e[from])] = e[to];
    };
    connect(Op::post_receive, Op::start_send);
    connect(Op::wait_receive, Op::start_send);
    connect(Op::start_send, Op::post_receive);
    connect(Op::wait_send, Op::start_send);
    const auto missing = std::count(e.nodes.begin(), e.nodes.end(), kNoAction);
    all_meet = all_meet && (missing == 0 || missing == 4);
  }
  if (all_meet) return;
  program.each_action([&](ActionPlace here, const Action& action) {
    const std::size_t number = is_transfer(action.op) ? numbers.of(action.tag) : ends.size();
    if (number == ends.size()) return;
    Ends& e = ends[number];
    if (e[action.op] != node(here.rank, here.at)) return;
    if (peer(e[action.op]) == kNoAction) {
      blame(here, action.op == Op::start_send ? "there is no receive of it" : "there is no send of it");
    }
    if ((action.op == Op::post_receive && e[Op::wait_receive] == kNoAction) ||
        (action.op == Op::start_send && e[Op::wait_send] == kNoAction)) {
      blame(here, "it is never waited for");
    }
    if (action.op == Op::wait_receive && e[Op::post_receive] == kNoAction) {
      blame(here, "its receive is not posted");
    }
  });
}

void Dependencies::match_collectives(const LoweredProgram& program, const std::vector<Op>& ops) {
  // The n-th occurrence on a rank meets the n-th on the others.
  using Key = std::tuple<Op, std::int32_t, std::int32_t, std::int32_t>;
  std::map<Key, std::int32_t> numbers;
  for (std::size_t r = 0; r < program.ranks.size(); ++r) {
    for (std::int32_t here = first_[r]; here < first_[r + 1]; ++here) {
      if (!is_collective(ops[static_cast<std::size_t>(here)])) continue;
      const Action& action = program.ranks[r][static_cast<std::size_t>(here - first_[r])];
      Key key{action.op, action.op == Op::tie ? action.tie.value : action.stage.value, action.group.value, 0};
      auto found = numbers.find(key);
      while (found != numbers.end() &&
             collectives_[static_cast<std::size_t>(found->second)].back() >= first_[r]) {
        ++std::get<3>(key);
        found = numbers.find(key);
      }
      if (found == numbers.end()) {
        found = numbers.emplace(key, collectives()).first;
        collectives_.emplace_back();
      }
      collectives_[static_cast<std::size_t>(found->second)].push_back(here);
      peer_[static_cast<std::size_t>(here)] = found->second;
    }
  }
  for (const auto& [key, number] : numbers) {
    const auto& here = members(number);
    const std::int32_t of = std::get<1>(key);
    std::vector<Rank> expected;
    if (std::get<0>(key) != Op::tie) {
      expected = members_of(program.placement, std::get<0>(key), StageId{of});
    } else if (of >= 0 && static_cast<std::size_t>(of) < program.ties.size()) {
      expected = members_of(program.placement, program.ties[static_cast<std::size_t>(of)]);
    }
    std::vector<Rank> came;
    for (const std::int32_t member : here) came.push_back(place(member).rank);
    const ActionPlace first = place(here.front());
    for (const Rank rank : expected) {
      if (!std::binary_search(came.begin(), came.end(), rank)) {
        problems_.push_back(fmt::format("{}: rank {} has no part in it", program.name(first), rank.value));
      }
    }
    for (const Rank rank : came) {
      if (!std::binary_search(expected.begin(), expected.end(), rank)) {
        problems_.push_back(fmt::format("rank {}: {} is not for this rank", rank.value,
                                        describe_action(program.action(first))));
      }
    }
  }
}

void Dependencies::fill_buffers(const LoweredProgram& program, const CostTable* costs) {
  room_end_.reserve(peer_.size());
  for (std::size_t r = 0; r < program.ranks.size(); ++r) {
    EagerBuffers buffers(rules_, costs);
    for (std::int32_t n = first_[r]; n < first_[r + 1]; ++n) {
      const Action& action = program.ranks[r][static_cast<std::size_t>(n - first_[r])];
      const std::int32_t post = action.op == Op::start_send ? peer(n) : kNoAction;
      if (post != kNoAction) buffers.send(place(post).rank, action.tag, post, room_);
      room_end_.push_back(static_cast<std::uint32_t>(room_.size()));
    }
  }
}

template <class Visit>
void Dependencies::each_awaited(Op op, std::int32_t node, Visit&& visit) const {
  const auto at = [](std::int32_t n) { return static_cast<std::size_t>(n); };
  const std::int32_t other = peer(node);
  if (other == kNoAction) return;
  switch (op) {
    case Op::wait_receive:
      visit(other);
      return;
    case Op::start_send:
      if (rules_.sends == TransportRules::Sends::rendezvous) visit(other);
      if (rules_.sends != TransportRules::Sends::eager) return;
      for (std::uint32_t i = node == 0 ? 0 : room_end_[at(node - 1)]; i < room_end_[at(node)]; ++i) {
        if (!visit(room_[i])) return;
      }
      return;
    case Op::wait_send:
      if (rules_.sends == TransportRules::Sends::launched && peer(other) != kNoAction) visit(peer(other));
      return;
    case Op::agree_norm:
    case Op::reduce:
    case Op::tie:
      for (const std::int32_t member : members(other)) {
        const std::int32_t before = member - 1;
        if (member != node && before >= first_[place(member).rank.index()] && !visit(before)) return;
      }
      return;
    default:
      return;
  }
}

void Dependencies::sort(const LoweredProgram& program, const std::vector<Op>& ops) {
  const auto at = [](std::int32_t n) { return static_cast<std::size_t>(n); };
  // Every rank runs until it stands still, and goes on when what it waits for is done.
  std::vector<std::int32_t> cursor(first_.begin(), first_.end() - 1);
  std::vector<std::size_t> arrived(collectives_.size(), 0);
  std::vector<bool> here(program.ranks.size(), false);  // the rank has come to the collective at its cursor
  std::vector<bool> done(peer_.size(), false);
  std::vector<bool> awaited(peer_.size(), false);                     // some rank stands still for it
  std::vector<std::int32_t> awaits(program.ranks.size(), kNoAction);  // what the rank last stood still for
  std::vector<std::size_t> runnable;
  for (std::size_t r = program.ranks.size(); r-- > 0;) runnable.push_back(r);
  order_.reserve(peer_.size());
  // The first thing that keeps `n` from running, if there is one.
  const auto missing = [&](Op op, std::int32_t n) {
    std::int32_t first = kNoAction;
    each_awaited(op, n, [&](std::int32_t other) {
      if (!done[at(other)]) first = other;
      return first == kNoAction;
    });
    return first;
  };
  const auto wake = [&](std::int32_t n) {
    // Who waits for a send or a receive is the rank at its other end, where all is well.
    const std::size_t likely = peer(n) == kNoAction ? awaits.size() : place(peer(n)).rank.index();
    if (likely < awaits.size() && awaits[likely] == n) {
      runnable.push_back(likely);
      return;
    }
    for (std::size_t r = 0; r < awaits.size(); ++r) {
      if (awaits[r] == n) runnable.push_back(r);
    }
  };
  while (!runnable.empty()) {
    const std::size_t r = runnable.back();
    runnable.pop_back();
    while (cursor[r] < first_[r + 1]) {
      const std::int32_t n = cursor[r];
      const Op op = ops[at(n)];
      if (is_collective(op)) {
        const auto& all = members(peer(n));
        std::size_t& came = arrived[at(peer(n))];
        if (!here[r]) ++came;
        here[r] = true;  // a rank may be looked at twice
        if (came < all.size()) break;
        for (const std::int32_t member : all) {
          order_.push_back(member);
          const auto rank = place(member).rank.index();
          ++cursor[rank];
          here[rank] = false;
          if (rank != r) runnable.push_back(rank);
        }
        continue;
      }
      const bool transfers = op == Op::start_send || op == Op::wait_receive || op == Op::wait_send;
      if (const std::int32_t first = transfers ? missing(op, n) : kNoAction; first != kNoAction) {
        awaited[at(first)] = true;
        awaits[r] = first;
        break;
      }
      done[at(n)] = true;
      order_.push_back(n);
      ++cursor[r];
      if (awaited[at(n)]) wake(n);
    }
  }
  if (!acyclic()) find_cycle(program, cursor);
}

void Dependencies::find_cycle(const LoweredProgram& program, const std::vector<std::int32_t>& stuck) {
  // What has run is in no cycle.
  WaitingLists lists{first_, {}, {}};
  for (std::size_t r = 0; r < stuck.size(); ++r) {
    auto& waits = lists.waits.emplace_back();
    for (std::int32_t n = stuck[r]; n < first_[r + 1]; ++n) {
      WaitingLists::Wait wait{n, lists.targets.size(), 0};
      each_awaited(program.ranks[r][static_cast<std::size_t>(n - first_[r])].op, n, [&](std::int32_t other) {
        if (stuck[place(other).rank.index()] <= other) lists.targets.push_back(other);
        return true;
      });
      wait.targets_end = lists.targets.size();
      if (wait.targets_end > wait.targets_begin) waits.push_back(wait);
    }
  }
  // First the ranks as they stand: from any of them, who is waited for leads into a circle.
  std::vector<std::vector<WaitingLists::Wait>> all(stuck.size());
  for (std::size_t r = 0; r < stuck.size(); ++r) {
    if (!lists.waits[r].empty() && lists.waits[r].front().node == stuck[r]) all[r] = {lists.waits[r].front()};
  }
  std::swap(all, lists.waits);
  cycle_ = shortest_cycle(lists, {});
  std::swap(all, lists.waits);
  cycle_ = shortest_cycle(lists, std::move(cycle_));
}

std::vector<std::string> Dependencies::describe_cycle(const LoweredProgram& program) const {
  const auto text = [&](std::int32_t node) {
    return fmt::format("[{}] {}", place(node).at, describe_action(action(program, node)));
  };
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < cycle_.size(); ++i) {
    const std::int32_t next = cycle_[(i + 1) % cycle_.size()];
    const Rank rank = place(next).rank;
    const Op op = action(program, cycle_[i]).op;
    each_awaited(op, cycle_[i], [&](std::int32_t other) {
      if (place(other).rank != rank || other < next) return true;
      lines.push_back(fmt::format("rank {} waits at {} for rank {} to {} {}", place(cycle_[i]).rank.value,
                                  text(cycle_[i]), rank.value, is_collective(op) ? "reach" : "pass",
                                  text(is_collective(op) ? other + 1 : other)));
      return false;
    });
  }
  return lines;
}

}  // namespace stagecraft
