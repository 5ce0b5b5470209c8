#include "schedules/list_scheduling/list_scheduler.h"

#include "schedules/list_scheduling/bank.h"
#include "schedules/list_scheduling/linked_replica.h"
#include "schedules/list_scheduling/rank_clocks.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

namespace stagecraft {
namespace {

/// A replica, and how many of its own micro-batches have begun each part.
struct ReplicaProgress : LinkedReplica {
  int forwards = 0;
  int inputs = 0;
  int weights = 0;
  int share = std::numeric_limits<int>::max();  ///< the most from their forward to their weight gradient
};

class Machine {
 public:
  using Keeps = std::function<bool(Rank, const Compute&)>;

  Machine(const Workload& workload, const KeepLimit& limit, const Policy& policy, Ticks most,
          const Keeps* keeps = nullptr)
      : workload_(workload),
        policy_(policy),
        keeps_(keeps),
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
    for (const LinkedReplica& at : linked_replicas(workload)) {
      ReplicaProgress& replica = replicas_[at.rank.index()].emplace_back(ReplicaProgress{at});
      if (!policy.share.empty()) replica.share = policy.share[at.stage.index()];
      actions[at.rank.index()] += 3 * to_size(at.count);
      work_left_[at.rank.index()] += at.count * (at.times->forward + at.times->input + at.times->weight);
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
      if (stopped_) return std::nullopt;
    }
    return ListSchedule{std::move(orders_), spans_.value(free_at_)};
  }

 private:
  struct Choice {
    Ticks priority = 0;
    int kind = 0;  ///< goes first of equal priority if lower; then later stages do
    Op op = Op::forward;
    ReplicaProgress* replica = nullptr;
    MicroBatch micro_batch{};
    std::size_t at = 0;
    Ticks ready = kNever;

    [[nodiscard]] bool before(const Choice& other) const {
      if (other.replica == nullptr) return true;
      if (priority != other.priority) return priority < other.priority;
      if (kind != other.kind) return kind < other.kind;
      return replica->stage > other.replica->stage;
    }
    /// By its members, each from a register: a copy of the whole right behind would wait for what was just stored.
    void become(const Choice& other) {
      priority = other.priority;
      kind = other.kind;
      op = other.op;
      replica = other.replica;
      micro_batch.value = other.micro_batch.value;
      at = other.at;
      ready = other.ready;
    }
  };

  /// Starts the first of what `rank` may start now, if any.
  void act(std::size_t rank, Ticks now) {
    Choice best;
    Choice coming;  // the first of what will be there soon
    Ticks next = kNever;
    const auto offer = [&](const Choice& choice) {
      if (choice.ready > now) next = std::min(next, choice.ready);
      Choice& than = choice.ready <= now ? best : coming;
      if (choice.before(than)) than.become(choice);
    };
    for (ReplicaProgress& replica : replicas_[rank]) {
      if (replica.inputs < replica.forwards) {
        const MicroBatch mb = replica.micro_batch(replica.inputs);
        const std::size_t at = replica.first + mb.index();
        if (gradient_ready_[at] != kNever) {
          const Ticks begin = gradient_ready_[at] - workload_.recompute_time(replica.stage, mb);
          offer({policy_.priorities.input[at], 0, Op::backward_input, &replica, mb, at, begin});
        }
      }
      if (replica.forwards < replica.count && replica.forwards - replica.weights < replica.share) {
        const MicroBatch mb = replica.micro_batch(replica.forwards);
        const std::size_t at = replica.first + mb.index();
        const Choice forward{
            policy_.priorities.forward[at], 1, Op::forward, &replica, mb, at, input_ready_[at]};
        // Whether there is memory for it takes longest to say, and is not asked where another goes first anyway.
        const bool last = forward.ready <= now && best.replica != nullptr && best.before(forward);
        if (forward.ready != kNever && !last && bank_.lends(Rank{rank}, replica.stage, mb)) offer(forward);
      }
      if (replica.weights < replica.inputs) {
        const MicroBatch mb = replica.micro_batch(replica.weights);
        const std::size_t at = replica.first + mb.index();
        offer({policy_.priorities.weight[at], 2, Op::backward_weight, &replica, mb, at, now});
      }
    }
    if (best.replica == nullptr) return wakeups_.at(rank, next);  // or what is sent to it by then
    const Compute compute{best.op, best.replica->stage, best.micro_batch};
    Ticks duration = best.replica->duration(best.op);
    if (best.op == Op::backward_input)
      duration += workload_.recompute_time(compute.stage, compute.micro_batch);
    if (coming.replica != nullptr && coming.before(best) &&
        coming.ready - now < duration / 100 * policy_.patience + duration % 100 * policy_.patience / 100 &&
        spans_.span(rank, coming.ready + work_left_[rank]) <= policy_.patient_until) {
      return wakeups_.at(rank, next);
    }
    spans_.begin(rank, compute, now);
    work_left_[rank] -= duration;
    start(rank, best, now + duration);
  }

  void start(std::size_t rank, const Choice& choice, Ticks end) {
    const Compute compute{choice.op, choice.replica->stage, choice.micro_batch};
    orders_[rank].emplace_back(choice.op, choice.replica->stage, choice.micro_batch);
    if (keeps_ != nullptr && !(*keeps_)(Rank{rank}, compute)) stopped_ = true;
    free_at_[rank] = end;
    wakeups_.at(rank, end);
    bank_.take(Rank{rank}, compute);
    switch (choice.op) {
      case Op::forward:
        ++choice.replica->forwards;
        if (choice.replica->next.ranks.empty()) {
          gradient_ready_[choice.at] = end;
        } else {
          deliver(input_ready_, choice.replica->next, compute.micro_batch, end, 0);
        }
        break;
      case Op::backward_input:
        ++choice.replica->inputs;
        if (!choice.replica->previous.ranks.empty()) {
          const LinkedReplica::Neighbour& to = choice.replica->previous;
          deliver(gradient_ready_, to, compute.micro_batch, end,
                  workload_.recompute_time(to.stage, compute.micro_batch));
        }
        break;
      default:
        ++choice.replica->weights;
        break;
    }
  }

  /// What it is for begins so long before with a recompute.
  void deliver(std::vector<Ticks>& ready, const LinkedReplica::Neighbour& to, MicroBatch mb, Ticks sent,
               Ticks recompute) {
    const std::size_t replica = to.replica(mb);
    const Ticks arrival = to.hops[replica * to.stride].arrival(sent, lane_free_);
    ready[to.first + mb.index()] = arrival;
    const std::size_t receiver = to.ranks[replica].index();
    const Ticks begin = std::max(now_, arrival - recompute);
    wakeups_.at(receiver, std::max(begin, free_at_[receiver]));
  }

  const Workload& workload_;
  const Policy& policy_;
  const Keeps* keeps_;  // asked where there is one
  bool stopped_ = false;
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

std::optional<Orders> list_schedule_while(
    const Workload& workload, const KeepLimit& limit, const Policy& policy,
    const std::function<bool(Rank rank, const Compute& compute)>& keeps) {
  auto schedule = Machine(workload, limit, policy, kNever, &keeps).run();
  if (!schedule) return std::nullopt;
  return std::move(schedule->orders);
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
