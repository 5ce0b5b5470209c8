#include "schedules/list_scheduling/due_order.h"

#include "schedules/list_scheduling/bank.h"
#include "schedules/list_scheduling/linked_replica.h"
#include "schedules/list_scheduling/rank_clocks.h"

#include <algorithm>
#include <array>
#include <utility>

namespace stagecraft {
namespace {

/// A replica, and how many of its own micro-batches have begun their forward and their weight gradient.
struct Filler : LinkedReplica {
  std::size_t number = 0;
  int forwards = 0;
  int weights = 0;
  int share = 0;  ///< the most in between
};

/// One action, and where what is known of it lies.
struct Item {
  Op op = Op::forward;
  MicroBatch micro_batch{};
  Filler* of = nullptr;

  [[nodiscard]] std::size_t at() const { return of->first + micro_batch.index(); }
  [[nodiscard]] std::size_t part() const { return op == Op::forward ? 0 : 1; }
  bool operator==(const Item&) const = default;
};

struct Lane {
  std::vector<Item> due;  // forwards and input gradients
  std::size_t next = 0;   // none before it is left
  std::vector<Filler*> fillers;
  std::vector<Item> weights;  // that have come up
  std::size_t weight = 0;     // the next of them
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
        done_{std::vector<char>(workload.placement.ranks.size() * to_size(workload.micro_batches)), {}},
        ready_{std::vector<Ticks>(done_[0].size(), kNever), {}},
        lane_free_(to_size(workload.lanes), 0),
        wakeups_(lanes_.size()) {
    done_[1] = done_[0];
    ready_[1] = ready_[0];
    std::fill_n(ready_[0].begin(), workload.micro_batches, 0);
    for (const LinkedReplica& at : linked_replicas(workload))
      fillers_.push_back({at, fillers_.size(), 0, 0, policy.share[at.stage.index()]});
    for (Filler& filler : fillers_) {
      Lane& lane = lanes_[filler.rank.index()];
      lane.fillers.push_back(&filler);
      for (int k = 0; k < filler.count; ++k) {
        for (const Op op : {Op::forward, Op::backward_input, Op::backward_weight}) {
          const Item item{op, filler.micro_batch(k), &filler};
          lane.work_left += duration(item);
          if (op != Op::backward_weight) lane.due.push_back(item);
        }
      }
    }
    std::vector<std::array<int, 2>> taken(fillers_.size(), {0, 0});
    for (std::size_t r = 0; r < lanes_.size(); ++r) {
      sort(lanes_[r].due);
      // Every part of a stage's work goes in micro-batch order, whatever is due.
      for (Item& item : lanes_[r].due)
        item.micro_batch = item.of->micro_batch(taken[item.of->number][item.part()]++);
      lanes_[r].weights.reserve(lanes_[r].due.size() / 2);
      orders_[r].reserve(lanes_[r].due.size() / 2 * 3);
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
  /// By what is due; what is due at once stays in its order.
  void sort(std::vector<Item>& items) {
    keys_.clear();
    for (const Item& item : items) keys_.emplace_back(due(item), keys_.size());
    std::ranges::sort(keys_);
    sorted_.clear();
    for (const auto& [when, i] : keys_) sorted_.push_back(items[i]);
    items.swap(sorted_);
  }
  [[nodiscard]] Ticks due(const Item& item) const {
    const Priorities& priorities = policy_.priorities;
    if (item.op == Op::forward) return priorities.forward[item.at()];
    return item.op == Op::backward_input ? priorities.input[item.at()] : priorities.weight[item.at()];
  }
  [[nodiscard]] Ticks duration(const Item& item) const {
    const Ticks own = item.of->duration(item.op);
    return item.op == Op::backward_input ? own + recompute_time(item) : own;
  }
  [[nodiscard]] Ticks recompute_time(const Item& item) const {
    return workload_.recompute_time(item.of->stage, item.micro_batch);
  }
  [[nodiscard]] bool done(const Item& item) const { return done_[item.part()][item.at()] != 0; }
  /// When it could begin if its rank were free; never while what it needs has not begun.
  [[nodiscard]] Ticks ready(const Item& item) const {
    const Ticks at = ready_[item.part()][item.at()];
    return item.op == Op::forward || at == kNever ? at : at - recompute_time(item);
  }
  [[nodiscard]] bool lends(const Item& item) {
    return bank_.lends(item.of->rank, item.of->stage, item.micro_batch);
  }
  [[nodiscard]] static bool left(const Lane& lane) {
    return lane.next < lane.due.size() || lane.weight < lane.weights.size();
  }

  /// Starts one thing on the rank; false where nothing that it waits for has begun.
  bool act(std::size_t rank) {
    Lane& lane = lanes_[rank];
    while (lane.next < lane.due.size() && done(lane.due[lane.next])) ++lane.next;
    const bool weights = lane.weight < lane.weights.size();
    if (lane.next == lane.due.size()) {
      if (!weights) return false;
      start(lane, lane.weights[lane.weight], lane.free_at);
      return true;
    }
    const Item* next = nullptr;
    bool room = true;
    for (std::size_t i = lane.next; i < lane.due.size() && next == nullptr; ++i) {
      const Item& item = lane.due[i];
      if (done(item)) continue;
      room = item.op != Op::forward || lends(item);
      if (room || weights) next = &item;
    }
    const Ticks when = next == nullptr ? kNever : ready(*next);
    if (when == kNever) return false;
    if (weights && due(lane.weights[lane.weight]) < due(*next)) {
      start(lane, lane.weights[lane.weight], lane.free_at);
      return true;
    }
    const Ticks gap = when - lane.free_at;
    if (gap > 0) {
      for (Filler* filler : lane.fillers) {
        if (fills(*filler, lane, *next, gap)) return true;
      }
      if (weights) {
        const Item& weight = lane.weights[lane.weight];
        if (duration(weight) / 100 * policy_.patience <= gap ||
            spans_.span(rank, when + lane.work_left) > policy_.patient_until) {
          start(lane, weight, lane.free_at);
          return true;
        }
      }
    }
    if (room) {
      start(lane, *next, std::max(lane.free_at, when));
    } else {
      start(lane, lane.weights[lane.weight], lane.free_at);
    }
    return true;
  }

  bool fills(Filler& filler, Lane& lane, const Item& next, Ticks gap) {
    if (filler.forwards == filler.count || filler.forwards - filler.weights >= filler.share) return false;
    const Item forward{Op::forward, filler.micro_batch(filler.forwards), &filler};
    if (forward == next || ready(forward) > lane.free_at || filler.times->forward > gap) return false;
    if (!lends(forward)) return false;
    start(lane, forward, lane.free_at);
    return true;
  }

  void start(Lane& lane, const Item item, Ticks begin) {
    Filler& filler = *item.of;
    const Compute compute{item.op, filler.stage, item.micro_batch};
    const std::size_t rank = filler.rank.index();
    spans_.begin(rank, compute, begin);
    const Ticks takes = duration(item);
    const Ticks end = lane.free_at = begin + takes;
    lane.work_left -= takes;
    orders_[rank].push_back(compute);
    bank_.take(filler.rank, compute);
    if (item.op == Op::backward_weight) {
      ++lane.weight;
      ++filler.weights;
      return;
    }
    done_[item.part()][item.at()] = 1;
    if (item.op == Op::forward) {
      ++filler.forwards;
      if (filler.next.ranks.empty()) {
        deliver(1, item.at(), end, rank);
      } else {
        send(0, filler.next, item.micro_batch, end);
      }
    } else {
      lane.weights.push_back({Op::backward_weight, item.micro_batch, &filler});
      if (!filler.previous.ranks.empty()) send(1, filler.previous, item.micro_batch, end);
    }
  }

  void send(std::size_t part, const LinkedReplica::Neighbour& to, MicroBatch mb, Ticks sent) {
    const std::size_t replica = to.replica(mb);
    const Ticks arrival = to.hops[replica * to.stride].arrival(sent, lane_free_);
    deliver(part, to.first + mb.index(), arrival, to.ranks[replica].index());
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
  std::vector<Filler> fillers_;            // does not grow once lanes refer to it
  std::array<std::vector<char>, 2> done_;  // forwards, input gradients; by Workload::at
  std::array<std::vector<Ticks>, 2> ready_;
  std::vector<Ticks> lane_free_;
  Wakeups wakeups_;
  // Kept for their memory.
  std::vector<std::pair<Ticks, std::size_t>> keys_;
  std::vector<Item> sorted_;
};

}  // namespace

std::optional<ListSchedule> due_order_within(const Workload& workload, const KeepLimit& limit,
                                             const Policy& policy, Ticks most) {
  return DueOrder(workload, limit, policy, most).run();
}

}  // namespace stagecraft
