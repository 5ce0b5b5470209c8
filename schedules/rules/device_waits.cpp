#include "schedules/rules/device_waits.h"

#include "schedules/rules/dependencies.h"
#include "schedules/rules/reductions.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <vector>

namespace stagecraft {
namespace {

/// Ranks whose hosts are looked at in one walk along the program.
constexpr std::size_t kBlock = 8;
/// Of each rank in a block: how many of its actions must be done for an action to come to its end.
using Needs = std::array<std::int32_t, kBlock>;

void join(Needs& into, const Needs& other) {
  for (std::size_t i = 0; i < kBlock; ++i) into[i] = std::max(into[i], other[i]);
}

bool sums(Op op) { return op == Op::reduce || op == Op::tie; }

/// Places on one rank, as intervals of its list.
class Places {
 public:
  explicit Places(std::size_t actions) : change_(actions + 1, 0) {}
  /// Actions first .. last.
  void add(std::int32_t first, std::int32_t last) {
    if (first > last) return;
    ++change_[static_cast<std::size_t>(first)];
    --change_[static_cast<std::size_t>(last) + 1];
  }
  /// Calls `visit` with each action of `list` at which a host may wait, and whether it is in an interval.
  template <class Visit>
  void each(const std::vector<Action>& list, Visit&& visit) const {
    int covered = 0;
    for (std::size_t i = 0; i < list.size(); ++i) {
      covered += change_[i];
      if (is_compute(list[i].op) || list[i].op == Op::step) visit(static_cast<std::int32_t>(i), covered > 0);
    }
  }

 private:
  std::vector<int> change_;
};

class Walk {
 public:
  Walk(const LoweredProgram& program, const TransportRules& rules, const Dependencies& dependencies)
      : program_(program), rules_(rules), dependencies_(dependencies) {
    const auto nodes = static_cast<std::size_t>(dependencies.size());
    number_.assign(nodes, -1);
    program.each_action([&](ActionPlace here, const Action& action) {
      const std::int32_t node = dependencies_.node(here.rank, here.at);
      if (action.op == Op::start_send || action.op == Op::post_receive) number(node);
      if (!sums(action.op)) return;
      const std::int32_t at = last_backward_into(program_, program_.ranks[here.rank.index()], here.at);
      const std::int32_t from = at < 0 ? node : dependencies_.node(here.rank, at);
      number(from);
      joins_.emplace(node, from);
    });
  }

  DeviceWaits run() {
    for (std::size_t first = 0; first < program_.ranks.size(); first += kBlock) {
      find_needs(first);
      const std::size_t end = std::min(first + kBlock, program_.ranks.size());
      for (std::size_t r = first; r < end; ++r) judge(r, r - first);
    }
    return found_;
  }

 private:
  void number(std::int32_t node) {
    std::int32_t& number = number_[static_cast<std::size_t>(node)];
    if (number < 0) number = count_++;
  }
  [[nodiscard]] const Needs& needs_of(std::int32_t node) const {
    return needs_[static_cast<std::size_t>(number_[static_cast<std::size_t>(node)])];
  }

  /// Of the block that begins with rank `first`, for every numbered action.
  void find_needs(std::size_t first) {
    needs_.assign(static_cast<std::size_t>(count_), Needs{});
    std::vector<Needs> now(program_.ranks.size(), Needs{});  // of the rank's last action so far
    std::vector<bool> seen(static_cast<std::size_t>(dependencies_.collectives()), false);
    for (const std::int32_t node : dependencies_.order()) {
      const ActionPlace place = dependencies_.place(node);
      const std::size_t rank = place.rank.index();
      const Action& action = program_.action(place);
      const std::int32_t peer = dependencies_.peer(node);
      if (action.op == Op::wait_receive) join(now[rank], needs_of(peer));
      if (action.op == Op::wait_send) join(now[rank], needs_of(dependencies_.peer(peer)));
      if (sums(action.op) || action.op == Op::agree_norm) {
        // Members stand next to each other: at the first of them each rank is at what comes before.
        if (!seen[static_cast<std::size_t>(peer)]) {
          seen[static_cast<std::size_t>(peer)] = true;
          const auto& members = dependencies_.members(peer);
          Needs all{};
          for (const std::int32_t member : members) join(all, now[dependencies_.place(member).rank.index()]);
          for (const std::int32_t member : members) now[dependencies_.place(member).rank.index()] = all;
        }
      }
      if (rank >= first && rank < first + kBlock) now[rank][rank - first] = place.at + 1;
      const std::int32_t number = number_[static_cast<std::size_t>(node)];
      if (number >= 0) needs_[static_cast<std::size_t>(number)] = now[rank];
    }
  }

  /// The rank's operations on the device, from when to when they need it.
  void judge(std::size_t rank, std::size_t in_block) {
    const std::vector<Action>& list = program_.ranks[rank];
    Places receives(list.size());
    Places sends(list.size());
    Places joined(list.size());
    const std::int32_t start = dependencies_.first_of(Rank{rank});
    for (std::int32_t i = 0; i < static_cast<std::int32_t>(list.size()); ++i) {
      const Op op = list[static_cast<std::size_t>(i)].op;
      const std::int32_t node = start + i;
      const bool at_wait = rules_.announced;
      if (op == (at_wait ? Op::wait_receive : Op::post_receive)) {
        receives.add(i + 1, needs_of(dependencies_.peer(node))[in_block] - 1);
      } else if (op == (at_wait ? Op::wait_send : Op::start_send)) {
        const std::int32_t post =
            at_wait ? dependencies_.peer(dependencies_.peer(node)) : dependencies_.peer(node);
        sends.add(i + 1, needs_of(post)[in_block] - 1);
      } else if (sums(op)) {
        const std::int32_t from = at_wait ? node : joins_.at(node);
        for (const std::int32_t member : dependencies_.members(dependencies_.peer(node))) {
          if (member != node) joined.add(from - start + 1, needs_of(joins_.at(member))[in_block] - 1);
        }
      }
    }
    count(rank, receives, found_.receives);
    count(rank, sends, found_.sends);
    count(rank, joined, found_.sums);
    receives.each(list, [&](std::int32_t, bool) { ++found_.places; });
  }

  void count(std::size_t rank, const Places& places, std::int64_t& number) {
    places.each(program_.ranks[rank], [&](std::int32_t at, bool bad) {
      if (!bad) return;
      ++number;
      const ActionPlace here{Rank{rank}, at};
      const auto earlier = [&](const ActionPlace& other) {
        return here.rank < other.rank || here.before(other);
      };
      if (!found_.first || earlier(*found_.first)) found_.first = here;
    });
  }

  const LoweredProgram& program_;
  const TransportRules& rules_;
  const Dependencies& dependencies_;
  std::vector<std::int32_t> number_;  // of the actions that others wait for, -1: none does
  std::int32_t count_ = 0;
  std::map<std::int32_t, std::int32_t> joins_;  // of a sum's action, where its rank joins
  std::vector<Needs> needs_;
  DeviceWaits found_{};
};

}  // namespace

DeviceWaits device_waits(const LoweredProgram& program, const TransportRules& rules,
                         const Dependencies& dependencies) {
  return Walk(program, rules, dependencies).run();
}

}  // namespace stagecraft
