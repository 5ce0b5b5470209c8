#include "schedules/list_scheduling/due_order.h"

#include "schedules/list_scheduling/bank.h"
#include "schedules/list_scheduling/rank_clocks.h"

#include <algorithm>
#include <array>
#include <utility>

namespace stagecraft {
namespace {

/// A replica of a stage, and how many of its own micro-batches have begun their forward and their weight
/// gradient.
struct Filler : StageReplica {
  int forwards = 0;
  int weights = 0;
};

struct Lane {
  std::vector<Compute> due;  // forwards and input gradients
  std::size_t next = 0;      // none before it is left
  std::vector<std::size_t> fillers;
  std::vector<Compute> weights;  // that have come up
  std::size_t weight = 0;        // the next of them
  Ticks free_at = 0;
  Ticks work_left = 0;
  bool waits = false;  // for what is not on its way yet
};

class DueOrder {
 public:
  DueOrder(const Workload& workload, const KeepLimit& limit, const Policy& policy, Ticks most)
      : workload_(workload),
        policy_(policy),
        spans_(workload, most),
        bank_(workload, limit),
        lanes_(to_size(workload.placement.world())),
        orders_(lanes_.size()),
        filler_(workload.placement.ranks.size()),
        done_{std::vector<char>(workload.placement.ranks.size() * to_size(workload.micro_batches)), {}},
        ready_{std::vector<Ticks>(done_[0].size(), kNever), {}},
        lane_free_(to_size(workload.lanes), 0),
        wakeups_(lanes_.size()) {
    done_[1] = done_[0];
    ready_[1] = ready_[0];
    std::fill_n(ready_[0].begin(), workload.micro_batches, 0);
    for (const StageReplica& at : stage_replicas(workload.placement, workload.micro_batches)) {
      Lane& lane = lanes_[at.rank.index()];
      filler_[at.stage.index()].push_back(fillers_.size());
      lane.fillers.push_back(fillers_.size());
      fillers_.push_back({at});
      for (int k = 0; k < at.count; ++k) {
        for (const Op op : {Op::forward, Op::backward_input, Op::backward_weight}) {
          const Compute compute{op, at.stage, at.micro_batch(k)};
          lane.work_left += workload.duration(compute);
          if (op != Op::backward_weight) lane.due.push_back(compute);
        }
      }
    }
    for (Lane& lane : lanes_) {
      std::ranges::stable_sort(lane.due, {}, [&](const Compute& compute) { return due(compute); });
      // Every part of a stage's work goes in micro-batch order, whatever is due.
      std::vector<std::array<int, 2>> taken(fillers_.size(), {0, 0});
      for (Compute& compute : lane.due) {
        const std::size_t i = index_of(compute);
        compute.micro_batch = fillers_[i].micro_batch(taken[i][part(compute)]++);
      }
    }
  }

  std::optional<ListSchedule> run() {
    while (const auto rank = wakeups_.next()) {
      (void)wakeups_.take(*rank);
      Lane& lane = lanes_[*rank];
      if (spans_.exceeds(*rank, lane.free_at + lane.work_left)) return std::nullopt;
      if (act(*rank)) {
        if (lane.work_left > 0 || left(lane)) wakeups_.at(*rank, lane.free_at);
      } else {
        lane.waits = true;
      }
    }
    std::vector<Ticks> ends;
    for (const Lane& lane : lanes_) {
      if (left(lane)) return std::nullopt;
      ends.push_back(lane.free_at);
    }
    return ListSchedule{std::move(orders_), spans_.value(ends)};
  }

 private:
  [[nodiscard]] static std::size_t part(const Compute& compute) { return compute.op == Op::forward ? 0 : 1; }
  [[nodiscard]] Ticks due(const Compute& compute) const {
    const std::size_t at = workload_.at(compute.stage, compute.micro_batch);
    if (compute.op == Op::forward) return policy_.priorities.forward[at];
    return compute.op == Op::backward_input ? policy_.priorities.input[at] : policy_.priorities.weight[at];
  }
  [[nodiscard]] bool done(const Compute& compute) const {
    return done_[part(compute)][workload_.at(compute.stage, compute.micro_batch)] != 0;
  }
  /// When it could begin if its rank were free; never while what it needs has not begun.
  [[nodiscard]] Ticks ready(const Compute& compute) const {
    const Ticks at = ready_[part(compute)][workload_.at(compute.stage, compute.micro_batch)];
    if (compute.op == Op::forward || at == kNever) return at;
    return at - workload_.recompute_time(compute.stage, compute.micro_batch);
  }
  [[nodiscard]] static bool left(const Lane& lane) {
    return lane.next < lane.due.size() || lane.weight < lane.weights.size();
  }
  [[nodiscard]] std::size_t index_of(const Compute& compute) const {
    return filler_[compute.stage.index()][workload_.replica(compute.stage, compute.micro_batch)];
  }
  Filler& filler(const Compute& compute) { return fillers_[index_of(compute)]; }

  /// Starts one thing on the rank; false where nothing that it waits for has begun.
  bool act(std::size_t rank) {
    Lane& lane = lanes_[rank];
    while (lane.next < lane.due.size() && done(lane.due[lane.next])) ++lane.next;
    const bool weights = lane.weight < lane.weights.size();
    if (lane.next == lane.due.size()) {
      if (!weights) return false;
      start(rank, lane.weights[lane.weight], lane.free_at);
      return true;
    }
    const Compute* next = nullptr;
    bool room = true;
    for (std::size_t i = lane.next; i < lane.due.size() && next == nullptr; ++i) {
      const Compute& compute = lane.due[i];
      if (done(compute)) continue;
      room = compute.op != Op::forward || bank_.lends(Rank{rank}, compute.stage, compute.micro_batch);
      if (room || weights) next = &compute;
    }
    const Ticks when = next == nullptr ? kNever : ready(*next);
    if (when == kNever) return false;
    if (weights && due(lane.weights[lane.weight]) < due(*next)) {
      start(rank, lane.weights[lane.weight], lane.free_at);
      return true;
    }
    const Ticks gap = when - lane.free_at;
    if (gap > 0) {
      for (const std::size_t i : lane.fillers) {
        if (fills(fillers_[i], rank, *next, gap)) return true;
      }
      if (weights) {
        const Compute& weight = lane.weights[lane.weight];
        const Ticks takes = workload_.duration(weight);
        if (takes / 100 * policy_.patience <= gap ||
            spans_.span(rank, when + lane.work_left) > policy_.patient_until) {
          start(rank, weight, lane.free_at);
          return true;
        }
      }
    }
    if (room) {
      start(rank, *next, std::max(lane.free_at, when));
    } else {
      start(rank, lane.weights[lane.weight], lane.free_at);
    }
    return true;
  }

  bool fills(const Filler& filler, std::size_t rank, const Compute& next, Ticks gap) {
    if (filler.forwards == filler.count) return false;
    if (filler.forwards - filler.weights >= policy_.share[filler.stage.index()]) return false;
    const Compute forward{Op::forward, filler.stage, filler.micro_batch(filler.forwards)};
    if (forward == next || ready(forward) > lanes_[rank].free_at || workload_.duration(forward) > gap)
      return false;
    if (!bank_.lends(Rank{rank}, forward.stage, forward.micro_batch)) return false;
    start(rank, forward, lanes_[rank].free_at);
    return true;
  }

  void start(std::size_t rank, const Compute compute, Ticks begin) {
    Lane& lane = lanes_[rank];
    const auto [op, stage, mb] = compute;
    spans_.begin(rank, compute, begin);
    const Ticks end = lane.free_at = begin + workload_.duration(compute);
    lane.work_left -= workload_.duration(compute);
    orders_[rank].push_back(compute);
    bank_.take(Rank{rank}, compute);
    if (op == Op::backward_weight) {
      ++lane.weight;
      ++filler(compute).weights;
      return;
    }
    done_[part(compute)][workload_.at(stage, mb)] = 1;
    if (op == Op::forward) {
      ++filler(compute).forwards;
      if (stage.value == workload_.placement.stages() - 1) {
        deliver(1, workload_.at(stage, mb), end, rank);
      } else {
        const StageId to{stage.value + 1};
        const Ticks arrival = workload_.forward_hop(stage, mb).arrival(end, lane_free_);
        deliver(0, workload_.at(to, mb), arrival, workload_.placement.rank_of(to, mb).index());
      }
    } else {
      lane.weights.push_back({Op::backward_weight, stage, mb});
      if (stage.value == 0) return;
      const StageId to{stage.value - 1};
      const Ticks arrival = workload_.backward_hop(stage, mb).arrival(end, lane_free_);
      deliver(1, workload_.at(to, mb), arrival, workload_.placement.rank_of(to, mb).index());
    }
  }

  void deliver(std::size_t part, std::size_t at, Ticks arrival, std::size_t receiver) {
    ready_[part][at] = arrival;
    if (std::exchange(lanes_[receiver].waits, false)) wakeups_.at(receiver, lanes_[receiver].free_at);
  }

  const Workload& workload_;
  const Policy& policy_;
  Spans spans_;
  Bank bank_;
  std::vector<Lane> lanes_;  // [rank]
  Orders orders_;
  std::vector<Filler> fillers_;
  std::vector<std::vector<std::size_t>> filler_;  // [stage][replica]
  std::array<std::vector<char>, 2> done_;         // forwards, input gradients; by Workload::at
  std::array<std::vector<Ticks>, 2> ready_;
  std::vector<Ticks> lane_free_;
  Wakeups wakeups_;
};

}  // namespace

std::optional<ListSchedule> due_order_within(const Workload& workload, const KeepLimit& limit,
                                             const Policy& policy, Ticks most) {
  return DueOrder(workload, limit, policy, most).run();
}

}  // namespace stagecraft
