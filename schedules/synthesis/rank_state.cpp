#include "schedules/synthesis/rank_state.h"

#include "schedules/lowering.h"
#include "schedules/synthesis/memory.h"

#include <algorithm>

namespace stagecraft::synthesis {

RankState::RankState(const Problem& problem, Rank rank) : standing_(standing_memory(problem, rank)) {
  const auto& seats = problem.seats_of(rank);
  for (const std::size_t i : seats) {
    const Seat& seat = problem.seats()[i];
    const Seat& first = problem.seats()[seats.front()];
    aligned_ = aligned_ && seat.replica == first.replica && seat.count == first.count &&
               problem.placement().width(seat.stage) == problem.placement().width(first.stage);
  }
  for (const std::size_t i : seats) {
    const Seat& seat = problem.seats()[i];
    Desk desk{.costs = &problem.least_costs(seat.stage),
              .count = seat.count,
              .sum = sum_staging(problem, seat.stage),
              .loss = rank == problem.printing_rank() ? Bytes{} : problem.costs().loss,
              .first = seat.stage.value == 0,
              .last = seat.stage == problem.last_stage()};
    const auto on_rank = [&](int stage) {
      int here = 0;
      for (int k = 0; k < seat.count; ++k) {
        const MicroBatch mb{seat.replica + k * problem.placement().width(seat.stage)};
        here += problem.seat(StageId{stage}, mb).rank == rank;
      }
      return here;
    };
    const int before = desk.first ? 0 : on_rank(seat.stage.value - 1);
    const int behind = desk.last ? 0 : on_rank(seat.stage.value + 1);
    desk.from_here = aligned_ && !desk.first && before == seat.count;
    desk.to_here = aligned_ && !desk.last && behind == seat.count;
    desk.receives = !desk.first && before == 0;
    desk.sends = !desk.last && behind == 0;
    desks_.push_back(desk);
  }
}

Bytes RankState::held(const RankCounts& counts) const {
  Bytes bytes = standing_;
  for (std::size_t i = 0; i < desks_.size(); ++i) bytes += bytes_of(desks_[i], things(counts, i));
  return bytes;
}

Bytes RankState::during(const RankCounts& counts, std::size_t place, Op op) const {
  Things before = things(counts, place);
  const RankCounts next = after(counts, place, op);
  const Bytes others = held(counts) - bytes_of(desks_[place], before);
  before.sums = things(next, place).sums;
  // Behind it the others may hold less: what was handed over is read no more.
  return std::max(others + during(desks_[place], before, before, op), held(next));
}

Bytes RankState::least_during(const SeatCounts& own, std::size_t place, Op op) const {
  Bytes others = standing_;
  for (std::size_t i = 0; i < desks_.size(); ++i) {
    if (i == place) continue;
    Things least;
    if (aligned_ && i < place) {
      // An earlier stage has done the forwards of all that have come here, and no input part but of those
      // whose input part is done here.
      const int kept = own.forwards + (op == Op::forward ? 1 : 0) - own.inputs;
      const bool two = desks_[i].sends && !desks_[i].costs->output_kept;
      least = {.for_input = kept,
               .outputs = two ? std::min(kept, LoweringOptions{}.sends_in_flight) : kept,
               .activations = kept};
      if (!two && !desks_[i].to_here && !desks_[i].costs->output_kept) least.outputs = 0;
    }
    others += bytes_of(desks_[i], least);
  }
  const SeatCounts next = after({own}, 0, op).front();
  return others + during(desks_[place], own_things(desks_[place], own), own_things(desks_[place], next), op);
}

RankCounts RankState::after(const RankCounts& counts, std::size_t place, Op op) {
  RankCounts next = counts;
  next[place].forwards += op == Op::forward;
  next[place].inputs += is_input_part(op);
  next[place].weights += is_weight_part(op);
  return next;
}

RankState::Things RankState::things(const RankCounts& counts, std::size_t place) const {
  const Desk& desk = desks_[place];
  const auto [forwards, inputs, weights] = counts[place];
  Things things = own_things(desk, counts[place]);
  if (desk.to_here) {
    const int read = counts[place + 1].weights;
    things.outputs = forwards - (desk.costs->output_kept ? std::min(read, inputs) : read);
  }
  if (desk.from_here) things.input_gradients = inputs - counts[place - 1].weights;
  return things;
}

RankState::Things RankState::own_things(const Desk& desk, const SeatCounts& counts) {
  const auto [forwards, inputs, weights] = counts;
  Things things{.for_input = forwards - inputs,
                .for_weight = inputs - weights,
                .activations = forwards - weights,
                .gradients = inputs - weights,
                .sums = weights == desk.count && weights > 0 ? 1 : 0};
  if (desk.last) {
    things.losses = forwards == desk.count ? 1 : 0;
  } else if (desk.costs->output_kept) {
    things.outputs = things.for_input;
  } else if (desk.sends) {
    things.outputs = std::min(things.for_input, LoweringOptions{}.sends_in_flight);
  }
  if (desk.receives) things.input_gradients = std::min(inputs, LoweringOptions{}.sends_in_flight);
  return things;
}

Bytes RankState::bytes_of(const Desk& desk, const Things& things) {
  const StageCosts& c = *desk.costs;
  Bytes bytes = c.kept_for_input * things.for_input + c.kept_for_weight * things.for_weight +
                c.output * things.outputs + c.input * things.input_gradients + desk.loss * things.losses +
                desk.sum * things.sums;
  if (desk.first) bytes += c.input * (things.for_input + things.for_weight);
  if (desk.last) bytes += c.targets * things.for_input;
  const auto slots = [&](int reading) {
    return std::min(std::max(reading, 1) + LoweringOptions{}.extra_slots, desk.count);
  };
  if (desk.receives) bytes += c.input * slots(things.activations);
  if (desk.sends) bytes += c.output * slots(things.gradients);
  return bytes;
}

/// The seat's own: while the computation runs and behind it.
Bytes RankState::during(const Desk& desk, Things before, const Things& after, Op op) {
  const StageCosts& c = *desk.costs;
  before.sums = after.sums;  // begins with the weight part
  Bytes transient;
  if (op == Op::forward) {
    ++before.activations;
    transient = c.forward_peak;
    if (desk.first) transient += c.input;
    if (desk.last) transient += c.targets;
  } else if (op == Op::backward_weight) {
    transient = c.weight_half_peak();
  } else {
    ++before.gradients;
    transient = op == Op::backward ? c.backward_peak : c.input_half_peak();
    // Of the activations under way the one of this micro-batch has been waited for.
    if (desk.sends && !c.output_kept && before.for_input <= LoweringOptions{}.sends_in_flight)
      --before.outputs;
  }
  return std::max(bytes_of(desk, before) + transient, bytes_of(desk, after));
}

}  // namespace stagecraft::synthesis
