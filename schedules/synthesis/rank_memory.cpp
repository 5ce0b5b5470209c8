#include "stagecraft/schedules/synthesis/rank_memory.h"

#include "stagecraft/schedules/costs/traffic.h"
#include "stagecraft/schedules/synthesis/peak_memory.h"

#include <algorithm>

namespace stagecraft::synthesis {
namespace {

constexpr int kSendsInFlight = LoweringOptions{}.sends_in_flight;
constexpr int kExtraSlots = LoweringOptions{}.extra_slots;

}  // namespace

RankMemory::RankMemory(const Problem& problem, Rank rank) : standing_(standing_memory(problem, rank)) {
  const auto& seats = problem.seats_of(rank);
  for (const std::size_t i : seats) {
    const Seat& seat = problem.seats()[i];
    const Seat& first = problem.seats()[seats.front()];
    aligned_ = aligned_ && seat.replica == first.replica && seat.count == first.count &&
               seat.replicas == first.replicas;
  }
  for (const std::size_t i : seats) {
    const Seat& seat = problem.seats()[i];
    int before = 0, behind = 0;  // own micro-batches that have the neighbouring stage on this rank
    for (int k = 0; k < seat.count; ++k) {
      const Situation here = problem.memory(seat.stage, seat.micro_batch(k)).here;
      before += here.from_here;
      behind += here.to_here;
    }
    SeatMemory& memory = seats_.emplace_back();
    memory.costs = problem.costs(seat.stage);
    memory.here = problem.situation(seat.stage);
    Situation& here = memory.here;
    here.recomputed = setting_of(problem.recompute(), seat.stage) != Recompute::none;
    here.from_here = before > 0;
    here.to_here = behind > 0;
    memory.deltas = deltas(memory.costs, here);
    const auto slot = [&](Payload payload) { return payload_bytes(problem.costs(), payload, seat.stage); };
    if (!here.first && !here.from_here) memory.activation = slot(Payload::activation);
    if (!here.last && !here.to_here) memory.gradient = slot(Payload::gradient);
    if (here.last && seat.count > 0 && rank != problem.printing_rank()) memory.loss = problem.costs().loss;
    memory.sum = sum_staging(memory.costs, seat.replicas);
    memory.count = seat.count;
    memory.knows_previous = aligned_ && here.from_here && before == seat.count;
    memory.knows_next = aligned_ && here.to_here && behind == seat.count;
  }
}

Bytes RankMemory::held(const RankCounts& counts) const {
  Bytes bytes = standing_;
  for (std::size_t i = 0; i < seats_.size(); ++i) bytes += bytes_of(seats_[i], progress(counts, i));
  return bytes;
}

Bytes RankMemory::during(const RankCounts& counts, std::size_t place, Op op) const {
  const Progress before = progress(counts, place);
  const RankCounts next = after(counts, place, op);
  const Bytes others = held(counts) - bytes_of(seats_[place], before);
  Progress end = before;
  end.summing = progress(next, place).summing;
  // Behind it the others may hold less: what was handed over is read no more.
  return std::max(others + during(seats_[place], before, end, op), held(next));
}

Bytes RankMemory::least_during(const SeatCounts& own, std::size_t place, Op op) const {
  Bytes others = standing_;
  for (std::size_t i = 0; i < seats_.size(); ++i) {
    if (i == place) continue;
    Progress least;
    if (aligned_ && i < place) {
      // An earlier stage has done the forwards of all that have come here, and no input part but of those
      // whose input part is done here.
      const int kept = own.forwards + (op == Op::forward ? 1 : 0) - own.inputs;
      least = own_progress(seats_[i], {.forwards = kept});
      if (seats_[i].knows_next) least[Moment::next_backward_weight] = 0;
    }
    others += bytes_of(seats_[i], least);
  }
  const SeatCounts next = after({own}, 0, op).front();
  const SeatMemory& seat = seats_[place];
  return others + during(seat, own_progress(seat, own), own_progress(seat, next), op);
}

RankCounts RankMemory::after(const RankCounts& counts, std::size_t place, Op op) {
  RankCounts next = counts;
  next[place].forwards += op == Op::forward;
  next[place].inputs += is_input_part(op);
  next[place].weights += is_weight_part(op);
  return next;
}

RankMemory::Progress RankMemory::progress(const RankCounts& counts, std::size_t place) const {
  const SeatMemory& seat = seats_[place];
  Progress progress = own_progress(seat, counts[place]);
  if (seat.knows_next) {
    const int read = counts[place + 1].weights;
    progress[Moment::next_backward_weight] = read;
    progress[Moment::output_unused] = std::min(read, counts[place].inputs);
  }
  if (seat.knows_previous) progress[Moment::previous_backward_weight] = counts[place - 1].weights;
  return progress;
}

RankMemory::Progress RankMemory::own_progress(const SeatMemory& seat, const SeatCounts& counts) {
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
  progress.loss_sent = forwards == seat.count;
  progress.summing = weights == seat.count && weights > 0;
  return progress;
}

Bytes RankMemory::bytes_of(const SeatMemory& seat, const Progress& progress) {
  Bytes bytes;
  for (std::size_t m = 0; m < kMoments; ++m) bytes += Bytes{seat.deltas.bytes[m]} * progress.passed[m];
  if (progress.loss_sent) bytes += seat.loss;
  if (progress.summing) bytes += seat.sum;
  const auto slots = [&](int reading) { return std::min(std::max(reading, 1) + kExtraSlots, seat.count); };
  return bytes + seat.activation * slots(progress.activations) + seat.gradient * slots(progress.gradients);
}

/// The seat's own: while the computation runs and behind it.
Bytes RankMemory::during(const SeatMemory& seat, Progress before, const Progress& after, Op op) {
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
  return std::max(bytes_of(seat, before) + least_transient(seat, op), bytes_of(seat, after));
}

/// Where forwards are repeated, that of the last micro-batch may be no such one.
Bytes RankMemory::least_transient(const SeatMemory& seat, Op op) {
  return std::min(transient(seat.costs, op, /*recomputed=*/false),
                  transient(seat.costs, op, seat.here.recomputed));
}

Bytes RankMemory::kept(std::size_t place) const {
  // What is handed over on the rank may be counted for the previous stage already.
  const SeatMemory& seat = seats_[place];
  return seat.activation + seat.deltas[Moment::load] + made_by_forward(seat);
}

Bytes RankMemory::made_by_forward(const SeatMemory& seat) {
  return seat.deltas.after({Moment::forward, Moment::activation_sent, Moment::next_backward_weight});
}

bool RankMemory::kept_from_begin(std::size_t place) const {
  const SeatMemory& seat = seats_[place];
  return least_transient(seat, Op::forward) >= made_by_forward(seat);
}

Bytes RankMemory::kept_for_weight(std::size_t place) const {
  const SeatMemory& seat = seats_[place];
  const Bytes left =
      kept(place) + seat.deltas.after({Moment::recompute, Moment::backward_input, Moment::gradient_sent,
                                       Moment::previous_backward_weight, Moment::output_unused});
  // The gradient of an output that was handed over on the rank, which is as large. Any other lies in a receive
  // slot, which spare_slots counts.
  return seat.knows_next ? left + seat.costs.output : left;
}

Bytes RankMemory::spare_slots(std::size_t place, Bytes room) const {
  const SeatMemory& seat = seats_[place];
  const Bytes spare = seat.gradient * std::min(1 + kExtraSlots, seat.count);
  // With all micro-batches held at once there is no slot more than they take.
  return kept(place) * seat.count <= room ? spare : spare + seat.activation;
}

}  // namespace stagecraft::synthesis
