#pragma once

// Random problems that synthesis is tested on, and the best order of small ones by trying them all.

#include "schedules/checker/checker.h"
#include "schedules/generators/registry.h"
#include "schedules/simulator/simulator.h"
#include "schedules/synthesis/peak_memory.h"
#include "schedules/synthesis/pricing.h"
#include "test/schedules/random_costs.h"

#include <algorithm>
#include <optional>
#include <vector>

namespace stagecraft::test {

/// A problem on a random placement: straight, a loop or a V.
struct SynthesisCase {
  Placement placement;
  int micro_batches = 0;
  bool clip = false;
  CostTable costs;
  RecomputeSettings recompute{};

  explicit SynthesisCase(std::uint64_t seed, bool links = true) {
    RandomCosts random(seed);
    const int ranks = random.between(1, 5);
    const int kind = random.between(0, 3);
    placement = kind == 0   ? Placement::straight(ranks)
                : kind == 1 ? Placement::looped(ranks, 2)
                : kind == 2 ? Placement::zigzag(ranks, 2)
                            : Placement::looped(ranks, 3);
    micro_batches = random.between(1, 3 * ranks);
    costs = random.table(placement.stages(), ranks, links);
    if (random.coin()) {
      for (int s = 0; s < placement.stages(); ++s)
        recompute.push_back(static_cast<Recompute>(random.between(0, 2)));
    }
    if (random.coin()) {
      for (int r = 0; r < ranks; ++r) costs.speed.push_back(random.between(0.5, 2.0));
    }
  }
  [[nodiscard]] synthesis::Problem problem(std::optional<Bytes> capacity = {}) const {
    return synthesis::Problem(placement, micro_batches, clip, costs, capacity, recompute);
  }
  /// Programs of every synchronous schedule that takes the placement, whole and with split backwards.
  [[nodiscard]] std::vector<ScheduleProgram> library() const {
    std::vector<ScheduleProgram> programs;
    for (const Schedule& schedule : schedules()) {
      if (!schedule.synchronous || schedule.searched) continue;
      try {
        programs.push_back(schedule.generate({.placement = placement,
                                              .group_sizes = {micro_batches},
                                              .clip = clip,
                                              .costs = &costs,
                                              .recompute = recompute}));
      } catch (const InputError&) {  // not for such a placement
      }
    }
    return programs;
  }
};

/// What is minimized of a step: the time from one to the next, where ranks go on between them.
inline Seconds step_of(const LoweredProgram& program, const CostTable& costs, bool clip = false) {
  Simulator simulator(program);
  return clip ? simulator.run(costs).makespan : simulator.cycle(costs);
}

inline Bytes most(const Proof& proof) {
  Bytes peak;
  for (const MemoryProof& rank : proof.memory) peak = std::max(peak, rank.peak);
  return peak;
}

/// All orders of `left` on one rank that keep what is ordered in order; `take` sees each.
template <class Take>
void each_order(std::vector<Compute>& left, Order& order, const Take& take) {
  if (left.empty()) return take(order);
  for (std::size_t i = 0; i < left.size(); ++i) {
    const bool free = std::none_of(left.begin(), left.begin() + static_cast<std::ptrdiff_t>(i),
                                   [&](const Compute& c) { return synthesis::ordered(c, left[i]); });
    if (!free) continue;
    const Compute chosen = left[i];
    left.erase(left.begin() + static_cast<std::ptrdiff_t>(i));
    order.push_back(chosen);
    each_order(left, order, take);
    order.pop_back();
    left.insert(left.begin() + static_cast<std::ptrdiff_t>(i), chosen);
  }
}

/// All computations of a rank, backwards split, each behind what it needs.
inline std::vector<Compute> computes_of(const synthesis::Problem& problem, Rank rank) {
  std::vector<Compute> computes;
  for (const Op op : {Op::forward, Op::backward_input, Op::backward_weight}) {
    std::vector<std::size_t> replicas = problem.replicas_of(rank);
    if (op != Op::forward) std::reverse(replicas.begin(), replicas.end());
    for (const std::size_t i : replicas) {
      for (int mb = 0; mb < problem.micro_batches(); ++mb)
        computes.push_back({op, problem.replicas()[i].stage, MicroBatch{mb}});
    }
  }
  return computes;
}

/// Whether other ranks can do their part: forwards come down through a rank's stages, input parts up.
inline bool passes_other_ranks(const Order& order) {
  for (std::size_t i = 0; i < order.size(); ++i) {
    for (std::size_t k = 0; k < i; ++k) {
      if (order[i].op != order[k].op || order[i].micro_batch != order[k].micro_batch) continue;
      if (order[i].op == Op::forward && order[i].stage < order[k].stage) return false;
      if (order[i].op == Op::backward_input && order[i].stage > order[k].stage) return false;
    }
  }
  return true;
}

/// The same with every backward in one piece whose parts follow each other.
inline Order joined(const Order& order) {
  Order whole;
  for (const Compute& c : order) {
    const bool follows = !whole.empty() && whole.back().op == Op::backward_input &&
                         whole.back().stage == c.stage && whole.back().micro_batch == c.micro_batch;
    if (c.op == Op::backward_weight && follows) {
      whole.back().op = Op::backward;
    } else {
      whole.push_back(c);
    }
  }
  return whole;
}

/// The least peak of all orders of a rank.
inline Bytes least_peak(const synthesis::Problem& problem, Rank rank) {
  std::optional<Bytes> least;
  std::vector<Compute> computes = computes_of(problem, rank);
  Order order;
  each_order(computes, order, [&](const Order& split) {
    if (!passes_other_ranks(split)) return;
    const Bytes peak = std::min(peak_memory(problem, rank, split), peak_memory(problem, rank, joined(split)));
    least = std::min(peak, least.value_or(peak));
  });
  return *least;
}

/// The least seconds of all orders of a straight pipeline of two stages, backwards split.
inline double brute_force(const synthesis::Problem& problem) {
  std::vector<std::vector<Order>> of_rank(2);
  for (int r = 0; r < 2; ++r) {
    std::vector<Compute> computes = computes_of(problem, Rank{r});
    Order order;
    each_order(computes, order, [&](const Order& whole) {
      if (problem.capacity() && synthesis::peak_memory(problem, Rank{r}, whole) > *problem.capacity()) return;
      of_rank[static_cast<std::size_t>(r)].push_back(whole);
    });
  }
  synthesis::Pricing pricing(problem);
  double best = synthesis::kNever;
  Orders orders(2);
  for (const auto& first : of_rank[0]) {
    orders[0] = first;
    for (const auto& second : of_rank[1]) {
      orders[1] = second;
      best = std::min(best, pricing.run(orders).seconds);
    }
  }
  return best;
}

}  // namespace stagecraft::test
