#include "schedules/rules/dependency_cycle.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace stagecraft {
namespace {

constexpr std::int32_t kNowhere = -1;

/// Searches by lengths. reach(k, q, i): the latest node of the list `start` that the first i waits of list q
/// lead to over k waits, the first of them among these. A wait of `start` closes a cycle of k + 1 when its
/// target's list, up to that target, reaches the wait itself or something behind it over k.
class CycleSearch {
 public:
  CycleSearch(const WaitingLists& lists, std::vector<std::int32_t> known, std::int64_t most_work)
      : lists_(lists), best_(std::move(known)), work_left_(most_work), waited_by_(lists.waits.size()) {
    for (std::size_t q = 0; q < lists_.waits.size(); ++q) {
      for (const auto& wait : lists_.waits[q]) {
        for (std::size_t t = wait.targets_begin; t < wait.targets_end; ++t) {
          auto& by = waited_by_[list_of(lists_.targets[t])];
          if (by.empty() || by.back() != q) by.push_back(q);
        }
      }
    }
  }

  std::vector<std::int32_t> run() {
    for (std::size_t start = 0; start < lists_.waits.size() && work_left_ > 0 && best_.size() != 2; ++start) {
      if (!lists_.waits[start].empty()) search_from(start);
    }
    return std::move(best_);
  }

 private:
  using Reach = std::vector<std::int32_t>;                   // per wait of one list
  using Level = std::vector<std::pair<std::size_t, Reach>>;  // the lists that reach anything, in order

  [[nodiscard]] std::size_t list_of(std::int32_t node) const {
    const auto after = std::upper_bound(lists_.first.begin(), lists_.first.end(), node);
    return static_cast<std::size_t>(after - lists_.first.begin()) - 1;
  }

  /// What `target` and all before it in its list reach over `steps` waits.
  [[nodiscard]] std::int32_t reach(std::size_t steps, std::int32_t target) const {
    const std::size_t q = list_of(target);
    if (steps == 0) return q == start_ ? target : kNowhere;
    const Level& level = levels_[steps - 1];
    const auto found =
        std::lower_bound(level.begin(), level.end(), q,
                         [](const auto& entry, std::size_t list) { return entry.first < list; });
    if (found == level.end() || found->first != q) return kNowhere;
    const auto& waits = lists_.waits[q];
    const auto after =
        std::upper_bound(waits.begin(), waits.end(), target,
                         [](std::int32_t node, const WaitingLists::Wait& wait) { return node < wait.node; });
    return after == waits.begin() ? kNowhere
                                  : found->second[static_cast<std::size_t>(after - waits.begin()) - 1];
  }

  /// The target of `wait` that reaches furthest over `steps`.
  std::pair<std::int32_t, std::int32_t> furthest(const WaitingLists::Wait& wait, std::size_t steps) {
    std::pair<std::int32_t, std::int32_t> best{kNowhere, kNowhere};  // what it reaches, target
    for (std::size_t t = wait.targets_begin; t < wait.targets_end; ++t) {
      best = std::max(best, {reach(steps, lists_.targets[t]), lists_.targets[t]});
    }
    work_left_ -= static_cast<std::int64_t>(wait.targets_end - wait.targets_begin);
    return best;
  }

  void search_from(std::size_t start) {
    start_ = start;
    levels_.clear();
    std::vector<std::size_t> sources{start};
    const std::size_t most = best_.empty() ? lists_.waits.size() : best_.size() - 1;
    for (std::size_t steps = 1; steps + 1 <= most && work_left_ > 0; ++steps) {
      add_level(steps, sources);
      if (levels_.back().empty()) return;
      sources.clear();
      for (const auto& [list, reached] : levels_.back()) sources.push_back(list);
      for (const auto& wait : lists_.waits[start]) {
        const auto [reached, target] = furthest(wait, steps);
        if (reached < wait.node) continue;
        best_ = path(wait.node, target, steps);
        return;
      }
    }
  }

  /// `sources`: the lists that reach `start` over one wait fewer.
  void add_level(std::size_t steps, const std::vector<std::size_t>& sources) {
    std::vector<std::size_t> lists;
    for (const std::size_t source : sources) {
      lists.insert(lists.end(), waited_by_[source].begin(), waited_by_[source].end());
    }
    std::sort(lists.begin(), lists.end());
    lists.erase(std::unique(lists.begin(), lists.end()), lists.end());
    Level level;
    for (const std::size_t list : lists) {
      if (list == start_) continue;  // back too early: that was a shorter cycle, or none
      Reach reached;
      std::int32_t so_far = kNowhere;
      for (const auto& wait : lists_.waits[list]) {
        so_far = std::max(so_far, furthest(wait, steps - 1).first);
        reached.push_back(so_far);
      }
      if (so_far != kNowhere) level.emplace_back(list, std::move(reached));
    }
    levels_.push_back(std::move(level));
  }

  /// The waits from `first` on, whose `target` reaches it over `steps` more.
  std::vector<std::int32_t> path(std::int32_t first, std::int32_t target, std::size_t steps) {
    std::vector<std::int32_t> cycle{first};
    for (; steps > 0; --steps) {
      const std::int32_t wanted = reach(steps, target);
      for (const auto& wait : lists_.waits[list_of(target)]) {
        const auto [reached, next] = furthest(wait, steps - 1);
        if (reached != wanted) continue;
        cycle.push_back(wait.node);
        target = next;
        break;
      }
    }
    return cycle;
  }

  const WaitingLists& lists_;
  std::vector<std::int32_t> best_;
  std::int64_t work_left_;
  std::vector<std::vector<std::size_t>> waited_by_;  // per list those that wait for it
  std::size_t start_ = 0;
  std::vector<Level> levels_;  // over 1, 2, ... waits
};

}  // namespace

std::vector<std::int32_t> shortest_cycle(const WaitingLists& lists, std::vector<std::int32_t> known,
                                         std::int64_t most_work) {
  return CycleSearch(lists, std::move(known), most_work).run();
}

}  // namespace stagecraft
