#include "schedules/generators/list_scheduler.h"

#include "schedules/base/error.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace stagecraft {
namespace {

constexpr Ticks kNever = std::numeric_limits<Ticks>::max();

/// Carries orders out, rank by rank as far as each gets.
class Run {
 public:
  Run(const Workload& workload, const Orders& orders)
      : workload_(workload),
        orders_(orders),
        next_(orders.size(), 0),
        free_at_(orders.size(), 0),
        input_ready_(workload.placement.ranks.size() * static_cast<std::size_t>(workload.micro_batches),
                     kNever),
        gradient_ready_(input_ready_),
        lane_free_(static_cast<std::size_t>(workload.lanes), 0) {
    std::fill_n(input_ready_.begin(), workload.micro_batches, 0);
    for (const auto& order : orders) actions_ += order.size();
  }

  OrdersValue carry_out() {
    std::vector<Ticks> first(orders_.size(), kNever);
    std::vector<std::size_t> runnable;
    for (std::size_t r = orders_.size(); r-- > 0;) runnable.push_back(r);
    done_.reserve(actions_);
    while (!runnable.empty()) {
      const std::size_t rank = runnable.back();
      runnable.pop_back();
      while (next_[rank] < orders_[rank].size()) {
        const Compute& compute = orders_[rank][next_[rank]];
        const Ticks ready = ready_at(compute);
        if (ready == kNever) break;
        const Ticks begin = std::max(free_at_[rank], ready);
        first[rank] = std::min(first[rank], begin);
        free_at_[rank] = begin + workload_.duration(compute);
        done_.emplace_back(rank, next_[rank]++);
        if (const int receiver = finish(compute, free_at_[rank]); receiver >= 0)
          runnable.push_back(static_cast<std::size_t>(receiver));
      }
    }
    STAGECRAFT_CHECK(done_.size() == actions_, "orders that deadlock");
    OrdersValue value;
    for (std::size_t r = 0; r < orders_.size(); ++r) {
      if (orders_[r].empty()) continue;
      value.makespan = std::max(value.makespan, free_at_[r]);
      value.longest_span = std::max(value.longest_span, free_at_[r] - first[r]);
    }
    return value;
  }

  /// Against the order in which `carry_out` went.
  Priorities latest_starts(Ticks makespan) const {
    Priorities latest;
    latest.forward.assign(input_ready_.size(), 0);
    latest.input = latest.forward;
    latest.weight = latest.forward;
    std::vector<Ticks> next_start(orders_.size(), makespan);
    for (auto it = done_.rbegin(); it != done_.rend(); ++it) {
      const auto [rank, index] = *it;
      const Compute& compute = orders_[rank][index];
      const std::size_t at = workload_.at(compute.stage, compute.micro_batch);
      const bool last = compute.stage.value == workload_.placement.stages() - 1;
      Ticks end = next_start[rank];
      if (compute.op == Op::forward && !last) {
        const StageId to{compute.stage.value + 1};
        end = std::min(end, latest.forward[workload_.at(to, compute.micro_batch)] -
                                workload_.forward_hop(compute.stage, compute.micro_batch).time);
      }
      if (compute.op == Op::backward_input && compute.stage.value > 0) {
        const StageId to{compute.stage.value - 1};
        end = std::min(end, latest.input[workload_.at(to, compute.micro_batch)] -
                                workload_.backward_hop(compute.stage, compute.micro_batch).time);
      }
      next_start[rank] = end - workload_.duration(compute);
      auto& of_op = compute.op == Op::forward          ? latest.forward
                    : compute.op == Op::backward_input ? latest.input
                                                       : latest.weight;
      of_op[at] = next_start[rank];
    }
    return latest;
  }

 private:
  /// A rank's own order sees to it that an input gradient follows its forward and a weight gradient its input
  /// gradient.
  [[nodiscard]] Ticks ready_at(const Compute& compute) const {
    const std::size_t at = workload_.at(compute.stage, compute.micro_batch);
    if (compute.op == Op::forward) return input_ready_[at];
    return compute.op == Op::backward_input ? gradient_ready_[at] : 0;
  }

  /// The rank that something was delivered to, -1 if to none or the same.
  int finish(const Compute& compute, Ticks end) {
    const StageId stage = compute.stage;
    if (compute.op == Op::forward) {
      if (stage.value < workload_.placement.stages() - 1) {
        return deliver(input_ready_, workload_.forward_hop(stage, compute.micro_batch),
                       StageId{stage.value + 1}, compute.micro_batch, end);
      }
      gradient_ready_[workload_.at(stage, compute.micro_batch)] = end;
    }
    if (compute.op == Op::backward_input && stage.value > 0) {
      return deliver(gradient_ready_, workload_.backward_hop(stage, compute.micro_batch),
                     StageId{stage.value - 1}, compute.micro_batch, end);
    }
    return -1;
  }

  int deliver(std::vector<Ticks>& ready, const Workload::Hop& hop, StageId to, MicroBatch mb, Ticks sent) {
    Ticks& at = ready[workload_.at(to, mb)];
    if (hop.lane < 0) {
      at = sent;
      return -1;
    }
    Ticks& lane = lane_free_[static_cast<std::size_t>(hop.lane)];
    at = lane = std::max(sent, lane) + hop.time;
    return workload_.placement.rank_of(to, mb).value;
  }

  const Workload& workload_;
  const Orders& orders_;
  std::size_t actions_ = 0;
  std::vector<std::size_t> next_;
  std::vector<Ticks> free_at_;
  std::vector<Ticks> input_ready_;  // by Workload::at
  std::vector<Ticks> gradient_ready_;
  std::vector<Ticks> lane_free_;
  std::vector<std::pair<std::size_t, std::size_t>> done_;  // rank, place in its order
};

/// Input gradients first, then forwards, then weight gradients. Among forwards the oldest micro-batch, or the
/// latest stage, goes first.
Priorities by_kind(const Workload& workload, bool oldest_first) {
  const auto stages = static_cast<Ticks>(workload.placement.stages());
  const auto micro_batches = static_cast<Ticks>(workload.micro_batches);
  const Ticks all = stages * micro_batches;
  Priorities priorities;
  for (Ticks s = 0; s < stages; ++s) {
    for (Ticks mb = 0; mb < micro_batches; ++mb) {
      const Ticks late = stages - 1 - s;
      priorities.input.push_back(mb);
      priorities.forward.push_back(all + (oldest_first ? mb * stages + late : late * micro_batches + mb));
      priorities.weight.push_back(2 * all + mb);
    }
  }
  return priorities;
}

}  // namespace

OrdersValue replay(const Workload& workload, const Orders& orders, Priorities* latest) {
  Run run(workload, orders);
  const OrdersValue value = run.carry_out();
  if (latest != nullptr) *latest = run.latest_starts(value.makespan);
  return value;
}

Orders best_orders(const Workload& workload, const MemoryLimit& limit, const std::vector<Orders>& seeds) {
  constexpr int kPatience[] = {0, 50, 100};
  Orders best;
  OrdersValue value{kNever, kNever};
  const auto consider = [&](Orders orders) {
    const OrdersValue now = replay(workload, orders);
    if (now >= value) return false;
    value = now;
    best = std::move(orders);
    return true;
  };
  for (const Orders& seed : seeds) consider(seed);
  for (const bool oldest_first : {false, true}) {
    const Priorities priorities = by_kind(workload, oldest_first);
    for (const int patience : kPatience) consider(list_schedule(workload, limit, priorities, patience));
  }
  for (bool better = true; better;) {
    better = false;
    Priorities latest;
    (void)replay(workload, best, &latest);
    for (const int patience : kPatience) {
      better = consider(list_schedule(workload, limit, latest, patience)) || better;
    }
  }
  return best;
}

}  // namespace stagecraft
