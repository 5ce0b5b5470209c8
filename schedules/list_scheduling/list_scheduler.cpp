#include "schedules/list_scheduling/list_scheduler.h"

#include "schedules/list_scheduling/bank.h"
#include "schedules/list_scheduling/rank_clocks.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace stagecraft {
namespace {

/// A replica, and how many of its own micro-batches have begun each part.
struct ReplicaProgress : StageReplica {
  int forwards = 0;
  int inputs = 0;
  int weights = 0;
};

class Machine {
 public:
  Machine(const Workload& workload, const KeepLimit& limit, const Policy& policy, Ticks most)
      : workload_(workload),
        policy_(policy),
        replicas_(to_size(workload.placement.world())),
        orders_(replicas_.size()),
        spans_(workload, most),
        free_at_(replicas_.size(), 0),
        work_left_(replicas_.size(), 0),
        bank_(workload, limit),
        input_ready_(workload.placement.ranks.size() * to_size(workload.micro_batches), kNever),
        gradient_ready_(input_ready_),
        lane_free_(to_size(workload.lanes), 0),
        wakeups_(replicas_.size()) {
    const Placement& placement = workload.placement;
    std::vector<std::size_t> actions(replicas_.size(), 0);
    for (const StageReplica& at : stage_replicas(placement, workload.micro_batches)) {
      replicas_[at.rank.index()].push_back({at});
      actions[at.rank.index()] += 3 * to_size(at.count);
      const Workload::Times& times = workload.times[at.stage.index()][to_size(at.replica)];
      work_left_[at.rank.index()] += at.count * (times.forward + times.input + times.weight);
    }
    for (std::size_t r = 0; r < replicas_.size(); ++r) orders_[r].reserve(actions[r]);
    std::fill_n(input_ready_.begin(), workload.micro_batches, 0);
    for (int s = 0; s < placement.stages() && !workload.recompute.empty(); ++s) {
      const StageId stage{s};
      for (int mb = 0; mb < workload.micro_batches; ++mb) {
        const Rank rank = placement.rank_of(stage, MicroBatch{mb});
        work_left_[rank.index()] += workload.recompute_time(stage, MicroBatch{mb});
      }
    }
  }

  std::optional<ListSchedule> run() {
    while (const auto rank = wakeups_.next()) {
      now_ = wakeups_.take(*rank);
      if (spans_.exceeds(*rank, now_ + work_left_[*rank])) return std::nullopt;
      act(*rank, now_);
    }
    return ListSchedule{std::move(orders_), spans_.value(free_at_)};
  }

 private:
  struct Choice {
    std::tuple<Ticks, int, int> key{};  // priority, kind, later stages first
    ReplicaProgress* replica = nullptr;
    Op op = Op::forward;
    MicroBatch micro_batch{};
    Ticks ready = kNever;
  };

  /// Starts the first of what `rank` may start now, if any.
  void act(std::size_t rank, Ticks now) {
    Choice best;
    Choice coming;  // the first of what will be there soon
    Ticks next = kNever;
    const auto offer = [&](ReplicaProgress& replica, Op op, int kind, MicroBatch micro_batch, Ticks priority,
                           Ticks ready) {
      const Choice choice{{priority, kind, -replica.stage.value}, &replica, op, micro_batch, ready};
      if (ready > now) next = std::min(next, ready);
      Choice& than = ready <= now ? best : coming;
      if (than.replica == nullptr || choice.key < than.key) than = choice;
    };
    for (ReplicaProgress& replica : replicas_[rank]) {
      if (replica.inputs < replica.forwards) {
        const MicroBatch mb = replica.micro_batch(replica.inputs);
        const std::size_t at = workload_.at(replica.stage, mb);
        if (gradient_ready_[at] != kNever) {
          const Ticks begin = gradient_ready_[at] - workload_.recompute_time(replica.stage, mb);
          offer(replica, Op::backward_input, 0, mb, policy_.priorities.input[at], begin);
        }
      }
      const bool within_share =
          policy_.share.empty() || replica.forwards - replica.weights < policy_.share[replica.stage.index()];
      if (replica.forwards < replica.count && within_share) {
        const MicroBatch mb = replica.micro_batch(replica.forwards);
        const std::size_t at = workload_.at(replica.stage, mb);
        if (input_ready_[at] != kNever && bank_.lends(Rank{rank}, replica.stage, mb))
          offer(replica, Op::forward, 1, mb, policy_.priorities.forward[at], input_ready_[at]);
      }
      if (replica.weights < replica.inputs) {
        const MicroBatch mb = replica.micro_batch(replica.weights);
        offer(replica, Op::backward_weight, 2, mb, policy_.priorities.weight[workload_.at(replica.stage, mb)],
              now);
      }
    }
    if (best.replica == nullptr) return wakeups_.at(rank, next);  // or what is sent to it by then
    const Compute compute{best.op, best.replica->stage, best.micro_batch};
    const Ticks duration = workload_.duration(compute);
    if (coming.replica != nullptr && coming.key < best.key &&
        coming.ready - now < duration / 100 * policy_.patience + duration % 100 * policy_.patience / 100 &&
        spans_.span(rank, coming.ready + work_left_[rank]) <= policy_.patient_until) {
      return wakeups_.at(rank, next);
    }
    spans_.begin(rank, compute, now);
    work_left_[rank] -= duration;
    start(rank, best, now + duration);
  }

  void start(std::size_t rank, const Choice& choice, Ticks end) {
    const StageId stage = choice.replica->stage;
    const MicroBatch mb = choice.micro_batch;
    const std::size_t at = workload_.at(stage, mb);
    orders_[rank].push_back({choice.op, stage, mb});
    free_at_[rank] = end;
    wakeups_.at(rank, end);
    bank_.take(Rank{rank}, {choice.op, stage, mb});
    const bool last = stage.value == workload_.placement.stages() - 1;
    switch (choice.op) {
      case Op::forward:
        ++choice.replica->forwards;
        if (last) {
          gradient_ready_[at] = end;
        } else {
          const StageId to{stage.value + 1};
          deliver(input_ready_, workload_.forward_hop(stage, mb), to, mb, end, 0);
        }
        break;
      case Op::backward_input:
        ++choice.replica->inputs;
        if (stage.value > 0) {
          const StageId to{stage.value - 1};
          deliver(gradient_ready_, workload_.backward_hop(stage, mb), to, mb, end,
                  workload_.recompute_time(to, mb));
        }
        break;
      default:
        ++choice.replica->weights;
        break;
    }
  }

  /// What it is for begins so long before with a recompute.
  void deliver(std::vector<Ticks>& ready, const Workload::Hop& hop, StageId to, MicroBatch mb, Ticks sent,
               Ticks recompute) {
    const Ticks arrival = hop.arrival(sent, lane_free_);
    ready[workload_.at(to, mb)] = arrival;
    const std::size_t receiver = workload_.placement.rank_of(to, mb).index();
    const Ticks begin = std::max(now_, arrival - recompute);
    wakeups_.at(receiver, std::max(begin, free_at_[receiver]));
  }

  const Workload& workload_;
  const Policy& policy_;
  std::vector<std::vector<ReplicaProgress>> replicas_;  // [rank]
  Orders orders_;
  Spans spans_;
  std::vector<Ticks> free_at_;
  std::vector<Ticks> work_left_;
  Bank bank_;
  std::vector<Ticks> input_ready_;  // by Workload::at
  std::vector<Ticks> gradient_ready_;
  std::vector<Ticks> lane_free_;
  Ticks now_ = 0;
  Wakeups wakeups_;
};

}  // namespace

Orders list_schedule(const Workload& workload, const KeepLimit& limit, const Policy& policy) {
  return Machine(workload, limit, policy, kNever).run()->orders;
}

std::optional<ListSchedule> list_schedule_within(const Workload& workload, const KeepLimit& limit,
                                                 const Policy& policy, Ticks most) {
  if (!workload.recompute.empty()) {
    // A rank learns of a gradient when it is sent, and in a replay has begun to recompute by then.
    ListSchedule schedule = *Machine(workload, limit, policy, kNever).run();
    schedule.value = *replay(workload, schedule.orders);
    if (schedule.value.step > most) return std::nullopt;
    return schedule;
  }
  return Machine(workload, limit, policy, most).run();
}

}  // namespace stagecraft
