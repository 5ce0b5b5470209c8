// The shortest cycle, held against a search of its own: the graph written out, edge by edge, and walked from
// every action.

#include "schedules/rules/dependencies.h"

#include "schedules/generators/registry.h"
#include "schedules/lowering/lowering.h"
#include "schedules/rules/dependency_cycle.h"
#include "test/schedules/random_programs.h"
#include "test/support/catch.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

namespace stagecraft {
namespace {

/// Actions by number, each with those that must be over before it; the flag says that they are another
/// rank's.
using Graph = std::vector<std::vector<std::pair<std::size_t, bool>>>;

/// Under rendezvous, from the tags alone.
Graph written_out(const LoweredProgram& program) {
  Graph graph;
  std::map<std::pair<Op, Tag>, std::size_t> ends;
  std::map<std::tuple<Op, StageId, Group>, std::vector<std::pair<std::size_t, bool>>>
      arrivals;  // node, first of list
  for (const auto& list : program.ranks) {
    for (std::size_t i = 0; i < list.size(); ++i) {
      const std::size_t here = graph.size();
      graph.emplace_back();
      if (i > 0) graph[here].emplace_back(here - 1, false);
      const Action& a = list[i];
      if (is_transfer(a.op)) ends[{a.op, a.tag}] = here;
      if (a.op == Op::reduce || a.op == Op::agree_norm)
        arrivals[{a.op, a.stage, a.group}].emplace_back(here, i == 0);
    }
  }
  for (const auto& [end, node] : ends) {
    const auto& [op, tag] = end;
    if (op == Op::start_send) graph[node].emplace_back(ends.at({Op::post_receive, tag}), true);
    if (op == Op::wait_receive) graph[node].emplace_back(ends.at({Op::start_send, tag}), true);
  }
  for (const auto& [name, members] : arrivals) {
    for (const auto& [node, unused] : members) {
      for (const auto& [other, first] : members) {
        if (other != node && !first) graph[node].emplace_back(other - 1, true);
      }
    }
  }
  return graph;
}

/// Fewest edges between ranks on any cycle; 0: there is none.
int shortest_by_brute_force(const Graph& graph) {
  int shortest = 0;
  for (std::size_t start = 0; start < graph.size(); ++start) {
    std::vector<int> distance(graph.size(), std::numeric_limits<int>::max());
    std::deque<std::size_t> queue{start};
    distance[start] = 0;
    while (!queue.empty()) {
      const std::size_t node = queue.front();
      queue.pop_front();
      for (const auto& [next, other_rank] : graph[node]) {
        const int there = distance[node] + (other_rank ? 1 : 0);
        if (next == start && there > 0 && (shortest == 0 || there < shortest)) shortest = there;
        if (there >= distance[next]) continue;
        distance[next] = there;
        other_rank ? queue.push_back(next) : queue.push_front(next);
      }
    }
  }
  return shortest;
}

/// Each waits for something that is, or stands behind, the next one.
bool is_cycle(const Graph& graph, const Dependencies& dependencies) {
  const auto& cycle = dependencies.cycle();
  for (std::size_t i = 0; i < cycle.size(); ++i) {
    const std::int32_t next = cycle[(i + 1) % cycle.size()];
    const auto& awaited = graph[static_cast<std::size_t>(cycle[i])];
    const bool waits = std::any_of(awaited.begin(), awaited.end(), [&](const auto& edge) {
      const auto other = static_cast<std::int32_t>(edge.first);
      return edge.second && dependencies.place(other).rank == dependencies.place(next).rank && next <= other;
    });
    if (!waits) return false;
  }
  return !cycle.empty();
}

/// Some transfers and collectives moved anywhere in their lists.
void disturb(LoweredProgram& program) {
  for (int moves = *rc::gen::inRange(1, 6); moves > 0; --moves) {
    auto& list = program.ranks[*rc::gen::inRange<std::size_t>(0, program.ranks.size())];
    if (list.empty()) continue;
    const auto from = *rc::gen::inRange<std::size_t>(0, list.size());
    const auto to = *rc::gen::inRange<std::size_t>(0, list.size());
    const Action action = list[from];
    list.erase(list.begin() + static_cast<std::ptrdiff_t>(from));
    list.insert(list.begin() + static_cast<std::ptrdiff_t>(to), action);
  }
}

}  // namespace

TEST_CASE("the cycle of a deadlock is as short as any in the graph", "[dependencies]") {
  std::map<std::size_t, int> lengths;
  CHECK(rc::check([&] {
    LoweredProgram program = lower(random_program().program);
    std::size_t actions = 0;
    for (const auto& list : program.ranks) actions += list.size();
    RC_PRE(actions < 1500);
    disturb(program);
    const Dependencies dependencies(program);
    const Graph graph = written_out(program);
    const int shortest = shortest_by_brute_force(graph);
    RC_ASSERT(dependencies.acyclic() == (shortest == 0));
    RC_ASSERT(dependencies.cycle().size() == static_cast<std::size_t>(shortest));
    if (shortest == 0) return;
    RC_ASSERT(is_cycle(graph, dependencies));
    RC_ASSERT(dependencies.describe_cycle(program).size() == dependencies.cycle().size());
    ++lengths[dependencies.cycle().size()];
  }));
  INFO("cycles of 2: " << lengths[2] << ", of 3: " << lengths[3]);
  CHECK(lengths[2] >= 5);
}

TEST_CASE("any lists that wait for each other: the shortest cycle is found", "[dependencies]") {
  std::map<std::size_t, int> lengths;
  CHECK(rc::check([&] {
    const auto count = *rc::gen::inRange(2, 7);
    WaitingLists lists{{0}, {}, {}};
    Graph graph;
    for (int q = 0; q < count; ++q) {
      const int size = *rc::gen::inRange(1, 6);
      lists.first.push_back(lists.first.back() + size);
    }
    lists.waits.resize(static_cast<std::size_t>(count));
    for (std::int32_t node = 0; node < lists.first.back(); ++node) {
      const auto q = static_cast<std::size_t>(std::upper_bound(lists.first.begin(), lists.first.end(), node) -
                                              lists.first.begin() - 1);
      graph.emplace_back();
      if (node > lists.first[q]) graph.back().emplace_back(static_cast<std::size_t>(node) - 1, false);
      const std::size_t begin = lists.targets.size();
      for (int t = *rc::gen::inRange(0, 4); t > 0; --t) {
        const auto target = *rc::gen::inRange(0, lists.first.back());
        if (target >= lists.first[q] && target < lists.first[q + 1]) continue;
        lists.targets.push_back(target);
        graph.back().emplace_back(static_cast<std::size_t>(target), true);
      }
      if (lists.targets.size() > begin) lists.waits[q].push_back({node, begin, lists.targets.size()});
    }
    const std::size_t length = shortest_cycle(lists, {}).size();
    RC_ASSERT(length == static_cast<std::size_t>(shortest_by_brute_force(graph)));
    ++lengths[length];
  }));
  INFO("cycles of 2: " << lengths[2] << ", 3: " << lengths[3] << ", 4: " << lengths[4]
                       << ", none: " << lengths[0]);
  CHECK(lengths[3] >= 1);
}

TEST_CASE("what has no other end keeps nobody waiting, and whoever waited behind it goes on",
          "[dependencies]") {
  const LoweredProgram whole =
      lower(find_schedule("1f1b").generate({.placement = Placement::straight(3), .group_sizes = {4}}));
  int dropped = 0;
  for (std::size_t r = 0; r < whole.ranks.size(); ++r) {
    for (std::size_t i = 0; i < whole.ranks[r].size(); ++i) {
      if (!is_transfer(whole.ranks[r][i].op)) continue;
      LoweredProgram program = whole;
      program.ranks[r].erase(program.ranks[r].begin() + static_cast<std::ptrdiff_t>(i));
      const Dependencies dependencies(program);
      CHECK_FALSE(dependencies.problems().empty());
      CHECK(dependencies.acyclic());
      ++dropped;
    }
  }
  CHECK(dropped > 40);
}

TEST_CASE("a short cycle further on is shorter than the circle in which the ranks stand", "[dependencies]") {
  // Three ranks stand in a circle of three; behind it, ranks 0 and 1 would wait for each other.
  WaitingLists lists{{0, 3, 6, 8}, {}, {4, 7, 1, 5, 2}};
  lists.waits = {{{0, 0, 1}, {2, 3, 4}}, {{3, 1, 2}, {5, 4, 5}}, {{6, 2, 3}}};
  CHECK(shortest_cycle(lists, {0, 3, 6}) == std::vector<std::int32_t>{2, 5});
}

}  // namespace stagecraft
