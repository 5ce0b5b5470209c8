#include "schedules/synthesis/rank_memory.h"

#include "schedules/costs/traffic.h"
#include "schedules/synthesis/peak_memory.h"

#include <algorithm>

namespace stagecraft::synthesis {
namespace {

constexpr int kSendsInFlight = LoweringOptions{}.sends_in_flight;
constexpr int kExtraSlots = LoweringOptions{}.extra_slots;

}  // namespace

RankMemory::RankMemory(const Problem& problem, Rank rank) : standing_(standing_memory(problem, rank)) {
  const auto& replicas = problem.replicas_of(rank);
  for (const std::size_t i : replicas) {
    const TimedReplica& replica = problem.replicas()[i];
    const TimedReplica& first = problem.replicas()[replicas.front()];
    aligned_ = aligned_ && replica.replica == first.replica && replica.count == first.count &&
               replica.replicas == first.replicas;
  }
  for (const std::size_t i : replicas) {
    const TimedReplica& replica = problem.replicas()[i];
    int before = 0, behind = 0;  // own micro-batches that have the neighbouring stage on this rank
    for (int k = 0; k < replica.count; ++k) {
      const Situation here = problem.memory(replica.stage, replica.micro_batch(k)).here;
      before += here.from_here;
      behind += here.to_here;
    }
    ReplicaMemory& memory = replicas_.emplace_back();
    memory.costs = problem.costs(replica.stage);
    memory.here = problem.situation(replica.stage);
    Situation& here = memory.here;
    here.recomputed = setting_of(problem.recompute(), replica.stage) != Recompute::none;
    here.from_here = before > 0;
    here.to_here = behind > 0;
    memory.deltas = deltas(memory.costs, here);
    const auto slot = [&](Payload payload) { return payload_bytes(problem.costs(), payload, replica.stage); };
    if (!here.first && !here.from_here) memory.activation = slot(Payload::activation);
    if (!here.last && !here.to_here) memory.gradient = slot(Payload::gradient);
    if (here.last && replica.count > 0 && rank != problem.printing_rank()) memory.loss = problem.costs().loss;
    memory.sum = sum_staging(memory.costs, replica.replicas);
    memory.count = replica.count;
    memory.knows_previous = aligned_ && here.from_here && before == replica.count;
    memory.knows_next = aligned_ && here.to_here && behind == replica.count;
  }
}

Bytes RankMemory::held(const RankCounts& counts) const {
  Bytes bytes = standing_;
  for (std::size_t i = 0; i < replicas_.size(); ++i) bytes += bytes_of(replicas_[i], progress(counts, i));
  return bytes;
}

Bytes RankMemory::during(const RankCounts& counts, std::size_t place, Op op) const {
  const Progress before = progress(counts, place);
  const RankCounts next = after(counts, place, op);
  const Bytes others = held(counts) - bytes_of(replicas_[place], before);
  Progress end = before;
  end.summing = progress(next, place).summing;
  // Behind it the others may hold less: what was handed over is read no more.
  return std::max(others + during(replicas_[place], before, end, op), held(next));
}

Bytes RankMemory::least_during(const ReplicaCounts& own, std::size_t place, Op op) const {
  Bytes others = standing_;
  for (std::size_t i = 0; i < replicas_.size(); ++i) {
    if (i == place) continue;
    Progress least;
    if (aligned_ && i < place) {
      // An earlier stage has done the forwards of all that have come here, and no input part but of those
      // whose input part is done here.
      const int kept = own.forwards + (op == Op::forward ? 1 : 0) - own.inputs;
      least = own_progress(replicas_[i], {.forwards = kept});
      if (replicas_[i].knows_next) least[Moment::next_backward_weight] = 0;
    }
    others += bytes_of(replicas_[i], least);
  }
  const ReplicaCounts next = after({own}, 0, op).front();
  const ReplicaMemory& replica = replicas_[place];
  return others + during(replica, own_progress(replica, own), own_progress(replica, next), op);
}

RankCounts RankMemory::after(const RankCounts& counts, std::size_t place, Op op) {
  RankCounts next = counts;
  next[place].forwards += op == Op::forward;
  next[place].inputs += is_input_part(op);
  next[place].weights += is_weight_part(op);
  return next;
}

RankMemory::Progress RankMemory::progress(const RankCounts& counts, std::size_t place) const {
  const ReplicaMemory& replica = replicas_[place];
  Progress progress = own_progress(replica, counts[place]);
  if (replica.knows_next) {
    const int read = counts[place + 1].weights;
    progress[Moment::next_backward_weight] = read;
    progress[Moment::output_unused] = std::min(read, counts[place].inputs);
  }
  if (replica.knows_previous) progress[Moment::previous_backward_weight] = counts[place - 1].weights;
  return progress;
}

RankMemory::Progress RankMemory::own_progress(const ReplicaMemory& replica, const ReplicaCounts& counts) {
  const auto [forwards, inputs, weights] = counts;
  Progress progress;
  progress[Moment::load] = progress[Moment::forward] = forwards;
  progress[Moment::recompute] = progress[Moment::backward_input] = inputs;
  progress[Moment::backward_weight] = weights;
  progress[Moment::activation_sent] = std::max(inputs, forwards - kSendsInFlight);
  progress[Moment::gradient_sent] = std::max(0, inputs - kSendsInFlight);
  // Neighbours on the rank may be done with all that they have.
  progress[Moment::next_backward_weight] = forwards;
  progress[Moment::output_unused] = progress[Moment::previous_backward_weight] = inputs;
  progress.activations = forwards - weights;
  progress.gradients = inputs - weights;
  progress.loss_sent = forwards == replica.count;
  progress.summing = weights == replica.count && weights > 0;
  return progress;
}

Bytes RankMemory::bytes_of(const ReplicaMemory& replica, const Progress& progress) {
  Bytes bytes;
  for (std::size_t m = 0; m < kMoments; ++m) bytes += Bytes{replica.deltas.bytes[m]} * progress.passed[m];
  if (progress.loss_sent) bytes += replica.loss;
  if (progress.summing) bytes += replica.sum;
  const auto slots = [&](int reading) { return std::min(std::max(reading, 1) + kExtraSlots, replica.count); };
  return bytes + replica.activation * slots(progress.activations) +
         replica.gradient * slots(progress.gradients);
}

/// The replica's own: while the computation runs and behind it.
Bytes RankMemory::during(const ReplicaMemory& replica, Progress before, const Progress& after, Op op) {
  before.summing = after.summing;  // begins with the weight part
  if (op == Op::forward) {
    ++before.activations;
    ++before[Moment::load];
  } else if (op != Op::backward_weight) {
    ++before.gradients;
    // The activation that was sent of this micro-batch has been waited for.
    int& sent = before[Moment::activation_sent];
    sent = std::max(sent, before[Moment::backward_input] + 1);
  }
  return std::max(bytes_of(replica, before) + least_transient(replica, op), bytes_of(replica, after));
}

/// Where forwards are repeated, that of the last micro-batch may be no such one.
Bytes RankMemory::least_transient(const ReplicaMemory& replica, Op op) {
  return std::min(transient(replica.costs, op, /*recomputed=*/false),
                  transient(replica.costs, op, replica.here.recomputed));
}

Bytes RankMemory::kept(std::size_t place) const {
  // What is handed over on the rank may be counted for the previous stage already.
  const ReplicaMemory& replica = replicas_[place];
  return replica.activation + replica.deltas[Moment::load] + made_by_forward(replica);
}

Bytes RankMemory::made_by_forward(const ReplicaMemory& replica) {
  return replica.deltas.after({Moment::forward, Moment::activation_sent, Moment::next_backward_weight});
}

bool RankMemory::kept_from_begin(std::size_t place) const {
  const ReplicaMemory& replica = replicas_[place];
  return least_transient(replica, Op::forward) >= made_by_forward(replica);
}

Bytes RankMemory::kept_for_weight(std::size_t place) const {
  const ReplicaMemory& replica = replicas_[place];
  const Bytes left =
      kept(place) + replica.deltas.after({Moment::recompute, Moment::backward_input, Moment::gradient_sent,
                                          Moment::previous_backward_weight, Moment::output_unused});
  // The gradient of an output that was handed over on the rank, which is as large. Any other lies in a receive
  // slot, which spare_slots counts.
  return replica.knows_next ? left + replica.costs.output : left;
}

Bytes RankMemory::spare_slots(std::size_t place, Bytes room) const {
  const ReplicaMemory& replica = replicas_[place];
  const Bytes spare = replica.gradient * std::min(1 + kExtraSlots, replica.count);
  // With all micro-batches held at once there is no slot more than they take.
  return kept(place) * replica.count <= room ? spare : spare + replica.activation;
}

}  // namespace stagecraft::synthesis
