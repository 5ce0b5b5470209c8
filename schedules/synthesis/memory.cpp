#include "schedules/synthesis/memory.h"

#include "schedules/reductions.h"
#include "schedules/segments.h"

#include <algorithm>
#include <optional>
#include <vector>

namespace stagecraft::synthesis {
namespace {

/// One rank's list as lowering would have it. Bytes are those alive after the actions so far.
class RankMemory {
 public:
  RankMemory(const Problem& problem, Rank rank, int extra_slots)
      : problem_(problem), rank_(rank), extra_slots_(extra_slots) {
    desks_.resize(problem.seats_of(rank).size());
    for (std::size_t i = 0; i < desks_.size(); ++i) {
      desks_[i].input_done.resize(static_cast<std::size_t>(problem.micro_batches()), 0);
      desks_[i].finished.resize(static_cast<std::size_t>(problem.micro_batches()), 0);
      desks_[i].weights_left = problem.seats()[problem.seats_of(rank)[i]].count;
    }
  }

  Bytes run(const Order& order) {
    for (const Compute& c : order) {
      if (c.op == Op::forward) {
        forward(c);
      } else {
        backward(c);
      }
    }
    Bytes slots;
    for (std::size_t i = 0; i < desks_.size(); ++i) {
      const Seat& seat = problem_.seats()[problem_.seats_of(rank_)[i]];
      const StageCosts& c = problem_.costs(seat.stage);
      slots += c.input * slots_of(desks_[i].activations) + c.output * slots_of(desks_[i].gradients);
    }
    return standing_memory(problem_, rank_) + slots + peak_;
  }

 private:
  struct Channel {
    int transfers = 0;
    int held = 0;
    int reading = 0;
    void read() { held = std::max(held, ++reading), ++transfers; }
  };
  /// What the rank knows of one of its seats.
  struct Desk {
    Channel activations, gradients;
    std::vector<int> sent_activations, sent_gradients;  // micro-batches under way, oldest first
    std::vector<char> input_done, finished;             // per micro-batch: its input, its weight part
    int weights_left = 0;
  };

  [[nodiscard]] int slots_of(const Channel& channel) const {
    return std::min(channel.held + extra_slots_, channel.transfers);
  }
  [[nodiscard]] Desk& desk(StageId stage) {
    const auto& seats = problem_.seats_of(rank_);
    std::size_t i = 0;
    while (problem_.seats()[seats[i]].stage != stage) ++i;
    return desks_[i];
  }
  [[nodiscard]] bool here(int stage, MicroBatch mb) const {
    return problem_.seat(StageId{stage}, mb).rank == rank_;
  }
  void add(Bytes bytes) { now_ += bytes; }
  void drop(Bytes bytes) { now_ -= bytes; }
  void look(Bytes above = {}) { peak_ = std::max(peak_, now_ + above); }

  void forward(const Compute& c) {
    const StageCosts& costs = problem_.costs(c.stage);
    Desk& at = desk(c.stage);
    const bool last = c.stage == problem_.last_stage();
    if (c.stage.value == 0) add(costs.input);
    if (last) add(costs.targets);
    if (c.stage.value > 0 && !here(c.stage.value - 1, c.micro_batch)) at.activations.read();
    const bool again = problem_.recomputed(c.stage, c.micro_batch);
    look(again ? costs.unkept_peak() : costs.forward_peak);
    if (!again) add(costs.kept_for_input);
    const bool travels = !last && !here(c.stage.value + 1, c.micro_batch);
    if (!last) add(costs.output);
    look();
    if (travels) send_activation(at, c);
    if (last && ends_group(c) && rank_ != problem_.printing_rank()) {
      add(problem_.costs().loss);
      look();
    }
  }

  /// Right before the input part.
  void recompute(const Compute& c) {
    const StageCosts& costs = problem_.costs(c.stage);
    look(costs.forward_peak);
    add(costs.kept_for_input);
    if (costs.output_kept && c.stage < problem_.last_stage()) add(costs.output);
    look();
  }

  void backward(const Compute& c) {
    const StageCosts& costs = problem_.costs(c.stage);
    Desk& at = desk(c.stage);
    const bool again = problem_.recomputed(c.stage, c.micro_batch);
    if (is_input_part(c.op) && again) recompute(c);
    if (is_weight_part(c.op) && --at.weights_left == 0) add(sum_staging(problem_, c.stage));
    const bool last = c.stage == problem_.last_stage();
    const bool from_here = !last && here(c.stage.value + 1, c.micro_batch);
    if (is_input_part(c.op)) {
      if (!last && !from_here) at.gradients.read();
      const auto under_way =
          std::find(at.sent_activations.begin(), at.sent_activations.end(), c.micro_batch.value);
      if (under_way != at.sent_activations.end()) {
        at.sent_activations.erase(under_way);
        if (!costs.output_kept || again) drop(costs.output);
      }
    }
    look(c.op == Op::backward         ? costs.backward_peak
         : c.op == Op::backward_input ? costs.input_half_peak()
                                      : costs.weight_half_peak());
    if (is_input_part(c.op)) {
      add(costs.kept_for_weight - costs.kept_for_input);
      at.input_done[c.micro_batch.index()] = 1;
      // Where the next stage has it from here, it may still read it.
      const bool read = from_here && !desk(StageId{c.stage.value + 1}).finished[c.micro_batch.index()];
      if (costs.output_kept && !last && (!read || again)) drop(costs.output);
      if (last) drop(costs.targets);
      if (c.stage.value > 0) add(costs.input);
    }
    if (is_weight_part(c.op)) finish(c, at, from_here);
    look();
    if (is_input_part(c.op) && c.stage.value > 0 && !here(c.stage.value - 1, c.micro_batch)) {
      if (const auto over = sent(at.sent_gradients, c)) drop(costs.input);
    }
  }

  /// After the weight part the stage needs nothing of the micro-batch any more.
  void finish(const Compute& c, Desk& at, bool gradient_from_here) {
    const StageCosts& costs = problem_.costs(c.stage);
    const int stage = c.stage.value;
    at.finished[c.micro_batch.index()] = 1;
    drop(costs.kept_for_weight);
    if (stage == 0) {
      drop(costs.input);
    } else if (here(stage - 1, c.micro_batch)) {
      // The stage before may have kept its output for itself, too.
      const StageCosts& before = problem_.costs(StageId{stage - 1});
      const bool again = problem_.recomputed(StageId{stage - 1}, c.micro_batch);
      if (!before.output_kept || again || desk(StageId{stage - 1}).input_done[c.micro_batch.index()])
        drop(before.output);
    } else {
      --at.activations.reading;
    }
    if (c.stage == problem_.last_stage()) return;
    if (gradient_from_here) {
      drop(problem_.costs(StageId{stage + 1}).input);
    } else {
      --at.gradients.reading;
    }
  }

  /// A send that starts; one too many has its oldest waited for, whose micro-batch is returned.
  std::optional<MicroBatch> sent(std::vector<int>& under_way, const Compute& c) {
    std::optional<MicroBatch> over;
    if (under_way.size() == static_cast<std::size_t>(LoweringOptions{}.sends_in_flight)) {
      over = MicroBatch{under_way.front()};
      under_way.erase(under_way.begin());
    }
    under_way.push_back(c.micro_batch.value);
    return over;
  }

  /// An activation that arrived is gone, unless the stage keeps it for its backward.
  void send_activation(Desk& at, const Compute& c) {
    const StageCosts& costs = problem_.costs(c.stage);
    const auto over = sent(at.sent_activations, c);
    if (over && (!costs.output_kept || problem_.recomputed(c.stage, *over))) drop(costs.output);
  }

  [[nodiscard]] bool ends_group(const Compute& c) const {
    return c.micro_batch.value + problem_.placement().width(c.stage) >= problem_.micro_batches();
  }

  const Problem& problem_;
  Rank rank_;
  int extra_slots_;
  std::vector<Desk> desks_;
  Bytes now_;
  Bytes peak_;
};

}  // namespace

Bytes peak_memory(const Problem& problem, Rank rank, const Order& order, int extra_slots) {
  return RankMemory(problem, rank, extra_slots).run(order);
}

bool fits(const Problem& problem, const Orders& orders, int extra_slots) {
  for (std::size_t r = 0; problem.capacity() && r < orders.size(); ++r) {
    if (peak_memory(problem, Rank{r}, orders[r], extra_slots) > *problem.capacity()) return false;
  }
  return true;
}

Bytes standing_memory(const Problem& problem, Rank rank) {
  Bytes standing;
  for (const std::size_t i : problem.seats_of(rank)) {
    const StageId stage = problem.seats()[i].stage;
    const StageCosts& c = problem.costs(stage);
    standing += c.weights() + c.buffers + c.optimizer_state + c.parameters;
    if (stage.value == 0) standing += c.input * kReadAhead + c.read;
    if (stage == problem.last_stage()) standing += c.targets * kReadAhead;
  }
  if (rank != problem.printing_rank()) return standing;
  // Losses to print: one slot a replica that sends one; there are more slots than that only for more groups.
  for (const Seat& seat : problem.seats()) {
    if (seat.stage == problem.last_stage() && seat.count > 0 && seat.rank != rank)
      standing += problem.costs().loss;
  }
  return standing;
}

Bytes sum_staging(const Problem& problem, StageId stage) {
  const StageCosts& c = problem.costs(stage);
  return reduce_staging(c.parameters + c.buffers, problem.placement().width(stage));
}

namespace {

/// Whether every own micro-batch passes between this stage and the neighbouring one by way of a link.
bool travels_all(const Problem& problem, const Seat& seat, StageId neighbour) {
  const int width = problem.placement().width(seat.stage);
  for (int mb = seat.replica; mb < problem.micro_batches(); mb += width) {
    if (problem.hand_off(neighbour, seat.stage, MicroBatch{mb})) return false;
  }
  return true;
}

bool receives_all(const Problem& problem, const Seat& seat) {
  return seat.stage.value > 0 && travels_all(problem, seat, StageId{seat.stage.value - 1});
}

bool sends_all(const Problem& problem, const Seat& seat) {
  return seat.stage < problem.last_stage() && travels_all(problem, seat, StageId{seat.stage.value + 1});
}

}  // namespace

Bytes kept_a_micro_batch(const Problem& problem, const Seat& seat) {
  const StageCosts& c = problem.least_costs(seat.stage);
  Bytes kept = c.kept_for_input;
  // What is handed over on the rank may be counted for the stage before already.
  if (seat.stage.value == 0 || receives_all(problem, seat)) kept += c.input;
  if (seat.stage == problem.last_stage()) return kept + c.targets;
  return c.output_kept ? kept + c.output : kept;
}

Bytes spare_slots(const Problem& problem, const Seat& seat, Bytes room) {
  constexpr int extra = LoweringOptions{}.extra_slots;
  const StageCosts& c = problem.costs(seat.stage);
  Bytes spare;
  if (sends_all(problem, seat)) spare += c.output * std::min(1 + extra, seat.count);
  // With all micro-batches held at once there is no slot more than they take.
  const bool all_at_once = kept_a_micro_batch(problem, seat) * seat.count <= room;
  if (receives_all(problem, seat) && !all_at_once) spare += c.input;
  return spare;
}

Bytes kept_for_weight_part(const Problem& problem, const Seat& seat) {
  const StageCosts& c = problem.least_costs(seat.stage);
  const Bytes targets = seat.stage == problem.last_stage() ? c.targets : Bytes{};
  return kept_a_micro_batch(problem, seat) - c.kept_for_input - targets + c.kept_for_weight;
}

}  // namespace stagecraft::synthesis
