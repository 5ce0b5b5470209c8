#pragma once

// Orders of a synchronous step made by list scheduling (Graham, "Bounds on Multiprocessing Timing Anomalies",
// SIAM J. Appl. Math. 17, 1969): time is simulated, and whenever a rank is free it takes, of the actions it
// could start and has the memory for, the one that comes first in a list of priorities.
//
// All numbers are whole, and ties go to the input gradient, then the forward, then the weight gradient, then
// to the later stage: every machine makes the same orders of the same request.

#include "schedules/costs/costs.h"
#include "schedules/program/orders.h"
#include "schedules/program/placement.h"
#include "schedules/program/recompute.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <vector>

namespace stagecraft {

/// Time in a fraction of the longest single time, so fine and so chosen that simple ratios of costs stay
/// exact.
using Ticks = std::int64_t;

/// When what does not happen, or has not yet, happens.
inline constexpr Ticks kNever = std::numeric_limits<Ticks>::max();

/// How good orders are; less is better. The order of the members counts.
struct OrdersValue {
  /// What is minimized: the time to the end of the last rank; or, where ranks go on from step to step, the longest
  /// span that a rank takes from what its first action needs to its last action.
  Ticks step = 0;
  Ticks other = 0;  ///< the other of the two
  auto operator<=>(const OrdersValue&) const = default;
};

/// What is to be ordered: forwards, input gradients and weight gradients of `micro_batches` on every stage.
/// Where a forward is repeated, that belongs to the input gradient and comes first in it: only the rest waits
/// for the gradient from the stage behind.
struct Workload {
  struct Times {
    Ticks forward = 1;
    Ticks input = 1;
    Ticks weight = 1;
    bool operator==(const Times&) const = default;
  };
  struct Hop {
    Ticks time = 0;
    int lane = -1;  ///< one per pair of ranks and direction, whose transfers are serialized; -1: same rank
    bool operator==(const Hop&) const = default;

    /// Of what is sent at `sent`; its lane is busy until then.
    Ticks arrival(Ticks sent, std::vector<Ticks>& lane_free) const {
      if (lane < 0) return sent;
      Ticks& free = lane_free[to_size(lane)];
      return free = std::max(sent, free) + time;
    }
  };

  Placement placement{};
  int micro_batches = 0;
  std::vector<std::vector<Times>> times{};  ///< [stage][replica]
  /// [stage][replica * replicas of the next stage + its replica]: the activation to the next stage, and the
  /// gradient back.
  std::vector<std::vector<Hop>> activation{};
  std::vector<std::vector<Hop>> gradient{};
  int lanes = 0;
  RecomputeSettings recompute{};
  bool goes_on =
      false;  ///< ranks begin the next step when they have ended their own list, wherever the others are
  bool operator==(const Workload&) const = default;

  [[nodiscard]] OrdersValue value(Ticks makespan, Ticks longest_span) const {
    return goes_on ? OrdersValue{longest_span, makespan} : OrdersValue{makespan, longest_span};
  }
  /// When the span begins of a rank that begins with `first`: its activation comes when the rank asks for it.
  [[nodiscard]] Ticks span_begin(const Compute& first, Ticks begin) const {
    const bool received = first.op == Op::forward && first.stage.value > 0;
    return received ? begin - forward_hop(StageId{first.stage.value - 1}, first.micro_batch).time : begin;
  }

  /// Where the values of one action kind lie in arrays over all stages and micro-batches.
  [[nodiscard]] std::size_t at(StageId stage, MicroBatch micro_batch) const {
    return stage.index() * to_size(micro_batches) + micro_batch.index();
  }
  [[nodiscard]] std::size_t replica(StageId stage, MicroBatch micro_batch) const {
    const std::size_t replicas = placement.ranks[stage.index()].size();
    return replicas == 1 ? 0 : micro_batch.index() % replicas;
  }
  /// An input gradient's recompute included.
  [[nodiscard]] Ticks duration(const Compute& compute) const {
    const Times& all = times[compute.stage.index()][replica(compute.stage, compute.micro_batch)];
    if (compute.op == Op::forward) return all.forward;
    if (compute.op == Op::backward_weight) return all.weight;
    return all.input + recompute_time(compute.stage, compute.micro_batch);
  }
  /// The recompute before a micro-batch's input gradient; 0 where there is none.
  [[nodiscard]] Ticks recompute_time(StageId stage, MicroBatch micro_batch) const {
    return recompute.empty() ? 0 : repeated_time(stage, micro_batch);
  }
  [[nodiscard]] const Hop& forward_hop(StageId from, MicroBatch micro_batch) const;
  [[nodiscard]] const Hop& backward_hop(StageId from, MicroBatch micro_batch) const;

 private:
  [[nodiscard]] Ticks repeated_time(StageId stage, MicroBatch micro_batch) const;
};

/// No order's OrdersValue::step is less: of a rank, its work and, where not all ranks go on, the way of a micro-batch
/// to its first stage.
[[nodiscard]] Ticks least_step(const Workload& workload);

struct WorkloadRequest {
  Placement placement{};
  int micro_batches = 0;
  const CostTable* costs = nullptr;  ///< not owned
  RecomputeSettings recompute{};     ///< [stage]; empty: none
  std::vector<Rank>
      priced_as{};       ///< [rank] whose speed and links in `costs` are its own; empty: each its own
  bool goes_on = false;  ///< Workload::goes_on
};

/// From the request's costs: compute divided by the rank's speed, transfers over the network between the
/// ranks. Without costs every part takes one tick and transfers none.
[[nodiscard]] Workload workload_of(const WorkloadRequest& request);

/// What ranks may keep, in any unit. A stage keeps `forward` of a micro-batch from its forward to its input
/// gradient, then `weight` (no more than `forward`) to its weight gradient.
struct KeepLimit {
  std::vector<std::int64_t> capacity{};  ///< [rank]; at least what one micro-batch needs there
  std::vector<std::int64_t> forward{};   ///< [stage]
  std::vector<std::int64_t> weight{};    ///< [stage]
};

/// One unit per stage and micro-batch, from the forward to the weight gradient; `capacity` on every rank, or
/// what one micro-batch needs where that is more.
[[nodiscard]] KeepLimit stage_limit(const Placement& placement, std::int64_t capacity);

/// When each action should go, lower first; indexed by Workload::at.
struct Priorities {
  std::vector<Ticks> forward{};
  std::vector<Ticks> input{};
  std::vector<Ticks> weight{};
};

/// Which kind of action goes before which, lower first; within a kind the oldest micro-batch, then the later
/// stage. A rank's stages are told apart: forwards of its first and of its later ones.
struct PriorityRule {
  int input;
  int later_forward;
  int first_forward;
  int weight;
};
[[nodiscard]] Priorities by_rule(const Workload& workload, const PriorityRule& rule);

/// How a list schedule chooses.
struct Policy {
  Priorities priorities{};
  /// [stage] the most micro-batches that a replica may hold from their forward to their weight gradient:
  /// keeps one stage of a rank from taking the memory that another will need. At least 1; empty: no such
  /// limit.
  std::vector<int> share{};
  /// The part of an action's time, in percent, that a rank would rather idle than start it, when a transfer
  /// under way brings it one of higher priority by then.
  int patience = 0;
  /// A rank idles for that only where its OrdersValue::step could still be so little.
  Ticks patient_until = kNever;
};

/// Within a stage and replica every kind of action goes in micro-batch order.
///
/// It always comes to an end. A rank takes a forward only if afterwards it could still finish its
/// micro-batches one after another, oldest first, in the memory it has (Dijkstra's banker); so the oldest
/// unfinished micro-batch of all can always go on, wherever it is.
[[nodiscard]] Orders list_schedule(const Workload& workload, const KeepLimit& limit, const Policy& policy);

/// The same while `keeps` says so of everything that a rank starts, in the rank's order; nothing if it said no.
[[nodiscard]] std::optional<Orders> list_schedule_while(
    const Workload& workload, const KeepLimit& limit, const Policy& policy,
    const std::function<bool(Rank rank, const Compute& compute)>& keeps);

struct ListSchedule {
  Orders orders{};
  OrdersValue value{};  ///< what replay() says of them
};

/// The same, given up as soon as its OrdersValue::step is sure to be above `most`.
[[nodiscard]] std::optional<ListSchedule> list_schedule_within(const Workload& workload,
                                                               const KeepLimit& limit, const Policy& policy,
                                                               Ticks most);

/// Orders carried out as they stand; nothing if they deadlock. `latest`, if given, gets the latest start of
/// every action that does not add to OrdersValue::step.
[[nodiscard]] std::optional<OrdersValue> replay(const Workload& workload, const Orders& orders,
                                                Priorities* latest = nullptr);

/// The best of `seeds`, of list schedules by general rules, with and without the seeds' shares of memory, and
/// of those that go by the latest starts in the best of these, for as long as that helps. Keeps within
/// `limit` if the seeds do; seeds that deadlock are passed over.
[[nodiscard]] Orders best_orders(const Workload& workload, const KeepLimit& limit,
                                 const std::vector<Orders>& seeds = {});

/// The best orders by the request's costs, never worse by them than those it would have without, or without
/// recomputation.
[[nodiscard]] Orders best_orders(const WorkloadRequest& request, const KeepLimit& limit,
                                 std::vector<Orders> seeds = {});

}  // namespace stagecraft
