#include "schedules/synthesis/peak_memory.h"

#include "schedules/costs/traffic.h"

#include <algorithm>
#include <cstddef>
#include <vector>

namespace stagecraft::synthesis {

// Walks a rank's list as lowering would have it, and adds up what its moments change.
PeakMemory::PeakMemory(const Problem& problem, Rank rank)
    : problem_(problem),
      rank_(rank),
      own_(problem.replicas_of(rank)),
      replicas_(own_.size()),
      standing_(standing_memory(problem, rank)) {
  for (std::size_t i = 0; i < own_.size(); ++i) replicas_[i].count = problem.replicas()[own_[i]].count;
}

bool PeakMemory::take(const Compute& compute) {
  const Bytes before = peak_;
  more_slots_ = false;
  if (compute.op == Op::forward) {
    forward(compute);
  } else {
    backward(compute);
  }
  return peak_ > before || more_slots_;
}

void PeakMemory::read(Channel& channel) {
  const auto slots = [&] {
    return std::min(channel.held + LoweringOptions{}.extra_slots, channel.transfers);
  };
  const int before = slots();
  channel.held = std::max(channel.held, ++channel.reading);
  ++channel.transfers;
  if (slots() > before) more_slots_ = true;
}

Bytes PeakMemory::peak(int extra_slots) const {
  Bytes slots;
  for (std::size_t i = 0; i < own_.size(); ++i) {
    const StageId stage = problem_.replicas()[own_[i]].stage;
    const auto add = [&](Payload payload, const Channel& channel) {
      const int count = std::min(channel.held + extra_slots, channel.transfers);
      slots += payload_bytes(problem_.costs(), payload, stage) * count;
    };
    add(Payload::activation, replicas_[i].activations);
    add(Payload::gradient, replicas_[i].gradients);
  }
  return standing_ + slots + peak_;
}

PeakMemory::ReplicaState& PeakMemory::replica(StageId stage) {
  std::size_t i = 0;
  while (problem_.replicas()[own_[i]].stage != stage) ++i;
  return replicas_[i];
}
/// Whether so many parts of a stage's own micro-batches, done in their order, are enough for this one's.
bool PeakMemory::includes(int done, StageId stage, MicroBatch mb) const {
  return done > mb.value / problem_.placement().replicas(stage);
}
void PeakMemory::pass(const MicroBatchMemory& memory, Moment moment) { now_ += memory.deltas[moment]; }
void PeakMemory::pass(StageId stage, MicroBatch mb, Moment moment) {
  pass(problem_.memory(stage, mb), moment);
}
void PeakMemory::run(const Compute& c, const MicroBatchMemory& memory, Op op) {
  update_peak(transient(problem_.costs(c.stage), op, memory.here.recomputed));
}

void PeakMemory::forward(const Compute& c) {
  const MicroBatchMemory& memory = problem_.memory(c.stage, c.micro_batch);
  const Situation here = memory.here;
  ReplicaState& at = replica(c.stage);
  pass(memory, Moment::load);
  if (!here.first && !here.from_here) read(at.activations);
  run(c, memory, Op::forward);
  pass(memory, Moment::forward);
  update_peak();
  if (!here.last && !here.to_here) send(at.sent_activations, c, Moment::activation_sent);
  // The last of its forwards: the loss goes to where it is printed.
  if (here.last && rank_ != problem_.printing_rank() && !includes(at.count - 1, c.stage, c.micro_batch)) {
    now_ += problem_.costs().loss;
    update_peak();
  }
}

void PeakMemory::backward(const Compute& c) {
  const MicroBatchMemory& memory = problem_.memory(c.stage, c.micro_batch);
  const Situation here = memory.here;
  ReplicaState& at = replica(c.stage);
  if (is_input_part(c.op) && here.recomputed) {  // right before it
    run(c, memory, Op::recompute);
    pass(memory, Moment::recompute);
    update_peak();
  }
  if (is_weight_part(c.op) && ++at.weights == at.count)
    now_ += sum_staging(problem_.costs(c.stage), problem_.placement().replicas(c.stage));
  if (is_input_part(c.op)) {
    if (!here.last && !here.to_here) read(at.gradients);
    if (std::erase(at.sent_activations, c.micro_batch) > 0) pass(memory, Moment::activation_sent);
  }
  run(c, memory, c.op);
  if (is_input_part(c.op)) {
    ++at.inputs;
    pass(memory, Moment::backward_input);
    const StageId next{c.stage.value + 1};
    if (here.to_here && includes(replica(next).weights, next, c.micro_batch))
      pass(memory, Moment::output_unused);
  }
  if (is_weight_part(c.op)) finish(c, at, memory);
  update_peak();
  if (is_input_part(c.op) && !here.first && !here.from_here)
    send(at.sent_gradients, c, Moment::gradient_sent);
}

/// A send that starts: if lowering lets no more be under way, the oldest is waited for.
void PeakMemory::send(std::vector<MicroBatch>& sent, const Compute& c, Moment over) {
  constexpr std::size_t kMost = LoweringOptions{}.sends_in_flight;
  if (sent.size() == kMost) {
    pass(c.stage, sent.front(), over);
    sent.erase(sent.begin());
  }
  sent.push_back(c.micro_batch);
}

/// After the weight part the stage needs nothing of the micro-batch any more.
void PeakMemory::finish(const Compute& c, ReplicaState& at, const MicroBatchMemory& memory) {
  pass(memory, Moment::backward_weight);
  if (memory.here.from_here) {
    const StageId previous{c.stage.value - 1};
    pass(previous, c.micro_batch, Moment::next_backward_weight);
    if (includes(replica(previous).inputs, previous, c.micro_batch))
      pass(previous, c.micro_batch, Moment::output_unused);
  } else {
    --at.activations.reading;
  }
  if (memory.here.to_here) {
    pass(StageId{c.stage.value + 1}, c.micro_batch, Moment::previous_backward_weight);
  } else {
    --at.gradients.reading;
  }
}

Bytes peak_memory(const Problem& problem, Rank rank, const Order& order, int extra_slots) {
  PeakMemory memory(problem, rank);
  for (const Compute& compute : order) memory.take(compute);
  return memory.peak(extra_slots);
}

bool fits(const Problem& problem, const Orders& orders, int extra_slots) {
  for (std::size_t r = 0; problem.capacity() && r < orders.size(); ++r) {
    if (peak_memory(problem, Rank{r}, orders[r], extra_slots) > *problem.capacity()) return false;
  }
  return true;
}

Bytes standing_memory(const Problem& problem, Rank rank) {
  Bytes all;
  for (const std::size_t i : problem.replicas_of(rank)) {
    const StageId stage = problem.replicas()[i].stage;
    all += standing(problem.costs(stage), problem.situation(stage));
  }
  if (rank != problem.printing_rank()) return all;
  // Losses to print: one slot per replica that sends one; there are more slots than that only for more
  // groups.
  for (const TimedReplica& replica : problem.replicas()) {
    if (replica.stage == problem.last_stage() && replica.count > 0 && replica.rank != rank)
      all += problem.costs().loss;
  }
  return all;
}

}  // namespace stagecraft::synthesis
