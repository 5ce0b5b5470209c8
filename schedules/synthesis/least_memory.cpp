#include "schedules/synthesis/least_memory.h"

#include "schedules/synthesis/rank_memory.h"

#include <algorithm>
#include <functional>
#include <map>
#include <queue>
#include <tuple>
#include <utility>
#include <vector>

namespace stagecraft::synthesis {
namespace {

class Paths {
 public:
  Paths(const Problem& problem, Rank rank) : state_(problem, rank) {
    for (const std::size_t i : problem.replicas_of(rank)) counts_.push_back(problem.replicas()[i].count);
  }

  Bytes least(std::size_t most_states) {
    const RankCounts nothing(counts_.size());
    reach(nothing, state_.held(nothing));
    for (;;) {
      STAGECRAFT_CHECK(!open_.empty(), "a rank's computations in no order");
      const auto [peak, remaining, counts] = open_.top();
      open_.pop();
      if (least_.at(counts) < peak) continue;  // reached with less since
      if (remaining == 0 || most_states-- == 0) return peak;
      for (std::size_t place = 0; place < counts.size(); ++place) {
        for (const Op op : {Op::forward, Op::backward, Op::backward_input, Op::backward_weight}) {
          if (may(counts, place, op))
            reach(RankMemory::after(counts, place, op), std::max(peak, state_.during(counts, place, op)));
        }
      }
    }
  }

 private:
  void reach(RankCounts counts, Bytes peak) {
    int remaining = 0;
    for (std::size_t i = 0; i < counts.size(); ++i)
      remaining += 3 * counts_[i] - counts[i].forwards - counts[i].inputs - counts[i].weights;
    const auto [known, fresh] = least_.try_emplace(counts, peak);
    if (!fresh && known->second <= peak) return;
    known->second = peak;
    open_.emplace(peak, remaining, std::move(counts));
  }

  [[nodiscard]] bool may(const RankCounts& counts, std::size_t place, Op op) const {
    const ReplicaCounts& own = counts[place];
    const bool neighbours = state_.aligned();
    switch (op) {
      case Op::forward:
        return own.forwards < counts_[place] &&
               (!neighbours || place == 0 || counts[place - 1].forwards > own.forwards);
      case Op::backward_weight:
        return own.weights < own.inputs;
      default:
        return own.inputs < own.forwards && (op == Op::backward_input || own.inputs == own.weights) &&
               (!neighbours || place + 1 == counts.size() || counts[place + 1].inputs > own.inputs);
    }
  }

  using Open = std::tuple<Bytes, int, RankCounts>;  // peak, computations to come: of equal ones the nearest

  RankMemory state_;
  std::vector<int> counts_;
  std::map<RankCounts, Bytes> least_;
  std::priority_queue<Open, std::vector<Open>, std::greater<>> open_;
};

}  // namespace

Bytes least_memory(const Problem& problem, Rank rank, std::size_t most_states) {
  return Paths(problem, rank).least(most_states);
}

}  // namespace stagecraft::synthesis
