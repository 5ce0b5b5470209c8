#include "schedules/list_scheduling/list_scheduler.h"
#include "schedules/list_scheduling/rank_clocks.h"

#include <algorithm>
#include <utility>

namespace stagecraft {
namespace {

/// Carries orders out, rank by rank as far as each gets.
class Run {
 public:
  Run(const Workload& workload, const Orders& orders)
      : workload_(workload),
        orders_(orders),
        next_(orders.size(), 0),
        free_at_(orders.size(), 0),
        input_ready_(workload.placement.ranks.size() * to_size(workload.micro_batches), kNever),
        gradient_ready_(input_ready_),
        lane_free_(to_size(workload.lanes), 0) {
    std::fill_n(input_ready_.begin(), workload.micro_batches, 0);
    for (const auto& order : orders) actions_ += order.size();
  }

  std::optional<OrdersValue> carry_out() {
    Spans spans(workload_, kNever);
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
        // A recompute comes before what the input gradient waits for.
        const Ticks before = compute.op == Op::backward_input
                                 ? workload_.recompute_time(compute.stage, compute.micro_batch)
                                 : 0;
        const Ticks begin = std::max(free_at_[rank], ready - before);
        spans.begin(rank, compute, begin);
        free_at_[rank] = begin + workload_.duration(compute);
        done_.emplace_back(rank, next_[rank]++);
        if (const int receiver = finish(compute, free_at_[rank]); receiver >= 0)
          runnable.push_back(to_size(receiver));
      }
    }
    if (done_.size() != actions_) return std::nullopt;
    const OrdersValue value = spans.value(free_at_);
    deadlines_.resize(orders_.size());
    for (std::size_t r = 0; r < orders_.size(); ++r)
      deadlines_[r] = value.step + free_at_[r] - spans.span(r, free_at_[r]);
    return value;
  }

  /// Against the order in which `carry_out` went.
  Priorities latest_starts() const {
    const std::vector<Ticks> none(input_ready_.size(), 0);
    Priorities latest{none, none, none};
    std::vector<Ticks> next_start = deadlines_;
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
        end = std::min(end, latest.input[workload_.at(to, compute.micro_batch)] +
                                workload_.recompute_time(to, compute.micro_batch) -
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
    ready[workload_.at(to, mb)] = hop.arrival(sent, lane_free_);
    return hop.lane < 0 ? -1 : workload_.placement.rank_of(to, mb).value;
  }

  const Workload& workload_;
  const Orders& orders_;
  std::size_t actions_ = 0;
  std::vector<std::size_t> next_;
  std::vector<Ticks> free_at_;
  std::vector<Ticks> deadlines_;    // [rank] when it may end
  std::vector<Ticks> input_ready_;  // by Workload::at
  std::vector<Ticks> gradient_ready_;
  std::vector<Ticks> lane_free_;
  std::vector<std::pair<std::size_t, std::size_t>> done_;  // rank, place in its order
};

constexpr PriorityRule kRules[] = {{0, 1, 1, 3}, {0, 1, 2, 3}, {0, 1, 3, 2}, {0, 2, 3, 1}, {1, 0, 2, 3},
                                   {1, 0, 3, 2}, {0, 0, 1, 2}, {0, 0, 2, 1}, {0, 0, 0, 1}, {1, 0, 0, 2}};

/// The most micro-batches that any replica of each stage holds from their forward to their weight gradient.
std::vector<int> shares_of(const Workload& workload, const Orders& orders) {
  std::vector<int> most(workload.placement.ranks.size(), 1);
  for (const auto& order : orders) {
    std::vector<int> held(most.size(), 0);
    for (const Compute& compute : order) {
      int& now = held[compute.stage.index()];
      now += compute.op == Op::forward ? 1 : compute.op == Op::backward_weight ? -1 : 0;
      most[compute.stage.index()] = std::max(most[compute.stage.index()], now);
    }
  }
  return most;
}

struct Candidate {
  OrdersValue value{};
  Orders orders{};
  std::vector<int> share{};
};

/// The few best so far; of equally good ones those that came first.
class Best {
 public:
  void add(Candidate candidate) {
    const auto worse = std::ranges::upper_bound(candidates_, candidate.value, {}, &Candidate::value);
    candidates_.insert(worse, std::move(candidate));
    if (candidates_.size() > kFollowed) candidates_.pop_back();
  }
  /// A step above that is not among the best.
  [[nodiscard]] Ticks most() const {
    return candidates_.size() < kFollowed ? kNever : candidates_.back().value.step;
  }
  [[nodiscard]] std::vector<Candidate>& candidates() { return candidates_; }

 private:
  static constexpr std::size_t kFollowed = 4;
  std::vector<Candidate> candidates_;
};

/// List schedules by the latest starts in the last one, as long as that helps.
void improve(const Workload& workload, const KeepLimit& limit, Candidate& best) {
  Policy policy{.priorities = {}, .share = best.share};
  for (bool better = true; better;) {
    better = false;
    (void)replay(workload, best.orders, &policy.priorities);
    for (const int patience : {0, 50, 100}) {
      policy.patience = patience;
      auto schedule = list_schedule_within(workload, limit, policy, best.value.step);
      if (!schedule || schedule->value >= best.value) continue;
      best.value = schedule->value;
      best.orders = std::move(schedule->orders);
      better = true;
    }
  }
}

}  // namespace

Priorities by_rule(const Workload& workload, const PriorityRule& rule) {
  const Placement& placement = workload.placement;
  const auto stages = static_cast<Ticks>(placement.stages());
  const Ticks all = stages * workload.micro_batches;
  std::vector<int> first_stage(to_size(placement.world()), placement.stages());
  for (int s = placement.stages() - 1; s >= 0; --s) {
    for (const Rank rank : placement.ranks[to_size(s)]) first_stage[rank.index()] = s;
  }
  Priorities priorities;
  for (int s = 0; s < placement.stages(); ++s) {
    for (int mb = 0; mb < workload.micro_batches; ++mb) {
      const Rank rank = placement.rank_of(StageId{s}, MicroBatch{mb});
      const bool first = first_stage[rank.index()] == s;
      const Ticks age = mb * stages + stages - 1 - s;
      priorities.input.push_back(rule.input * all + age);
      priorities.forward.push_back((first ? rule.first_forward : rule.later_forward) * all + age);
      priorities.weight.push_back(rule.weight * all + age);
    }
  }
  return priorities;
}

std::optional<OrdersValue> replay(const Workload& workload, const Orders& orders, Priorities* latest) {
  Run run(workload, orders);
  const auto value = run.carry_out();
  if (value && latest != nullptr) *latest = run.latest_starts();
  return value;
}

Orders best_orders(const Workload& workload, const KeepLimit& limit, const std::vector<Orders>& seeds) {
  Best best;
  std::vector<std::vector<int>> shares{{}};
  for (const Orders& seed : seeds) {
    std::vector<int> share = shares_of(workload, seed);
    if (const auto value = replay(workload, seed)) best.add({*value, seed, share});
    if (std::ranges::find(shares, share) == shares.end()) shares.push_back(std::move(share));
  }
  for (const std::vector<int>& share : shares) {
    for (const PriorityRule& rule : kRules) {
      const Policy policy{.priorities = by_rule(workload, rule), .share = share};
      auto schedule = list_schedule_within(workload, limit, policy, best.most());
      if (schedule) best.add({schedule->value, std::move(schedule->orders), share});
    }
  }
  auto& candidates = best.candidates();
  for (Candidate& candidate : candidates) improve(workload, limit, candidate);
  return std::move(std::ranges::min_element(candidates, {}, &Candidate::value)->orders);
}

Orders best_orders(const WorkloadRequest& request, const KeepLimit& limit, std::vector<Orders> seeds) {
  if (any_recompute(request.recompute)) {
    WorkloadRequest plain = request;
    plain.recompute.clear();
    seeds.push_back(best_orders(plain, limit, seeds));
  }
  WorkloadRequest equal = request;
  equal.costs = nullptr;
  Orders for_equal_times = best_orders(workload_of(equal), limit, seeds);
  if (request.costs == nullptr) return for_equal_times;
  seeds.push_back(std::move(for_equal_times));
  return best_orders(workload_of(request), limit, seeds);
}

}  // namespace stagecraft
