#pragma once

// The memory contract: what a rank holds, from when until when, in requested tensor bytes. It stands
// here once, as a table, and every reader folds the same rows: the proof and the curve in pictures
// (checker/memory.cpp), the search for orders (synthesis/peak_memory.h, synthesis/rank_memory.h) and
// the planner (partitioner/plan/stage_memory.h). The engine's counting allocator is its independent witness
// (test/engine/memory_test.cpp).
//
// A rank holds
//   - for the whole segment: the `standing` rows of every stage it holds; as many older versions of the
//     weights (StageCosts::version) as are alive at once at most; its receive slots (payload_bytes,
//     traffic.h). A step whose source version is still read later copies once, into a ring that keeps
//     its memory. One whose source is read no more updates in place;
//   - for a while: the `held` rows of every micro-batch on every stage it holds;
//   - `sum_staging` of a stage with replicas, from the *beginning* of the backward with which the rank
//     joins the sum (last_backward_into, reductions.h) to the end of the reduce;
//   - `tie_staging` (reductions.h) of a tied weight likewise, to the end of the tie;
//   - CostTable::skip of what a stage makes for one that is no neighbour, an activation or its gradient, from
//     the end of the action that makes it to the end of its wait_send, or of the last use on the other stage
//     where that is on the rank too;
//   - CostTable::loss, from the start_send of a loss to its wait_send;
//   - `transient` during one action, above all that.
//
// A micro-batch shorter than the others counts as a full one.

#include "schedules/costs/costs.h"
#include "schedules/program/action.h"
#include "schedules/program/segments.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>

namespace stagecraft {

/// The parts of MemoryProof (checker.h).
enum class MemoryCategory : std::uint8_t {
  weights,
  versions,
  optimizer_state,
  gradients,
  kept,
  transfers,
  transient
};
inline constexpr std::size_t kMemoryCategories = 7;

/// Of one micro-batch on one stage: the end of an action. A whole backward is both its parts. In validation, and on
/// a frozen stage, the forward is the last use of a micro-batch: it takes the place of both parts.
enum class Moment : std::uint8_t {
  load,
  forward,
  recompute,
  backward_input,
  backward_weight,
  next_backward_weight,      ///< on the next stage, where that is on the same rank
  previous_backward_weight,  ///< on the previous stage, likewise
  activation_sent,           ///< the wait_send of the output
  gradient_sent,             ///< the wait_send of the input's gradient
  output_unused,             ///< the later of backward_input and next_backward_weight
};
inline constexpr std::size_t kMoments = 10;

/// Of one micro-batch on one stage, as far as the table asks.
struct Situation {
  bool first = false, last = false;         ///< stage of the pipeline
  bool training = true;                     ///< it has a backward: neither validation nor a frozen stage
  bool begins = false;                      ///< its backward makes no gradient of its input, as the first's
  bool recomputed = false;                  ///< its forward is repeated before its backward
  bool from_here = false, to_here = false;  ///< the previous stage, the next one has it on the same rank
};

/// What must and what must not be true of a situation, as bits.
struct When {
  enum Bit : std::uint16_t {
    first = 1,
    last = 2,
    training = 4,
    recomputed = 8,
    from_here = 16,
    to_here = 32,
    output_kept = 64,    ///< StageCosts::output_kept
    reads_output = 128,  ///< so that the backward reads it, where it is not recomputed
    begins = 256,
  };
  unsigned with = 0, without = 0;
};

/// So many times these bytes, for the whole segment.
struct StandingRow {
  MemoryCategory category;
  Bytes StageCosts::*bytes;
  int times = 1;
  When when{};
};

/// These bytes, from one moment to another.
struct HeldRow {
  MemoryCategory category;
  Bytes StageCosts::*bytes;
  Moment from, until;
  When when{};
};

/// The rows. A tensor with two uses has a row for each stretch of its life, so that no byte counts twice.
/// An interval whose end comes before its beginning is empty.
namespace memory_rows {
using enum MemoryCategory;
using enum Moment;
using enum When::Bit;
using C = StageCosts;

inline constexpr std::array standing{
    StandingRow{weights, &C::parameters},
    StandingRow{weights, &C::compute_copy},
    StandingRow{weights, &C::buffers},
    StandingRow{optimizer_state, &C::optimizer_state},
    // One accumulation, as large as the parameters.
    StandingRow{gradients, &C::parameters, 1, {training}},
    // Data read ahead.
    StandingRow{kept, &C::input, kReadAhead, {first}},
    StandingRow{kept, &C::read, 1, {first}},
    StandingRow{kept, &C::targets, kReadAhead, {last}},
    StandingRow{kept, &C::fields, kReadAhead},
};

inline constexpr std::array held{
    // The data.
    HeldRow{kept, &C::input, load, backward_weight, {first}},
    HeldRow{kept, &C::targets, load, backward_input, {last}},
    HeldRow{kept, &C::fields, load, backward_weight},
    // What the backward needs of the forward.
    HeldRow{kept, &C::kept_for_input, forward, backward_input, {training, recomputed}},
    HeldRow{kept, &C::kept_for_input, recompute, backward_input, {training | recomputed}},
    HeldRow{kept, &C::kept_for_weight, backward_input, backward_weight, {training}},
    // The output. The last stage's is not a boundary. Sent, and then kept for the backward:
    HeldRow{transfers, &C::output, forward, activation_sent, {0, last | to_here}},
    HeldRow{kept, &C::output, activation_sent, backward_input, {reads_output, last | to_here}},
    // Handed over on the rank:
    HeldRow{kept, &C::output, forward, next_backward_weight, {to_here, last | reads_output}},
    HeldRow{kept, &C::output, forward, output_unused, {to_here | reads_output, last}},
    // Another one, made by a recompute whether the first has gone or not:
    HeldRow{kept, &C::output, recompute, backward_input, {training | recomputed | output_kept, last}},
    // The gradient of the input, sent or handed over on the rank.
    HeldRow{transfers, &C::input, backward_input, gradient_sent, {training, begins | from_here}},
    HeldRow{transfers, &C::input, backward_input, previous_backward_weight, {training | from_here, begins}},
};
}  // namespace memory_rows

struct MemoryTable {
  std::span<const StandingRow> standing;  ///< of a stage
  std::span<const HeldRow> held;          ///< of a micro-batch on a stage
};
inline constexpr MemoryTable kMemoryTable{memory_rows::standing, memory_rows::held};

/// Calls `visit(row, bytes)` for every row that applies: those of StandingRow::bytes or HeldRow::bytes.
template <class Row, class Visit>
constexpr void each_row(std::span<const Row> rows, const StageCosts& costs, Situation here,
                        const Visit& visit) {
  const bool reads = costs.output_kept && here.training && !here.recomputed;
  unsigned bits = 0;  // of When, from the highest down
  for (const bool set : {here.begins || here.first, reads, costs.output_kept, here.to_here, here.from_here,
                         here.recomputed, here.training, here.last, here.first})
    bits = 2 * bits + (set ? 1 : 0);
  for (const Row& row : rows) {
    if ((bits & (row.when.with | row.when.without)) == row.when.with) visit(row, costs.*row.bytes);
  }
}

/// The held rows as what each moment adds: bytes that begin there less bytes that end. For readers in
/// which no interval's end comes before its beginning: lowering waits for a sent activation before the
/// backward that reads it.
struct MomentDeltas {
  std::array<std::int64_t, kMoments> bytes{};

  [[nodiscard]] Bytes operator[](Moment moment) const { return Bytes{bytes[to_size(moment)]}; }
  /// What is held of a micro-batch for which exactly these moments have passed.
  [[nodiscard]] Bytes after(std::initializer_list<Moment> passed) const;
};
[[nodiscard]] MomentDeltas deltas(const StageCosts& costs, Situation here);

/// All that stands of a stage.
[[nodiscard]] Bytes standing(const StageCosts& costs, Situation here);

/// While an action runs, above what is held before it. `recomputed` as in the situation of its micro-batch: such a
/// forward keeps nothing, and so is one of a frozen stage. 0 for actions that compute nothing and update nothing.
[[nodiscard]] inline Bytes transient(const StageCosts& costs, Op op, bool recomputed) {
  switch (op) {
    case Op::forward:
      return recomputed ? costs.unkept_peak() : costs.forward_peak;
    case Op::recompute:
      return costs.forward_peak;
    case Op::backward:
      return costs.backward_peak;
    case Op::backward_input:
      return costs.input_half_peak();
    case Op::backward_weight:
      return costs.weight_half_peak();
    case Op::step:
      return costs.step_peak.value_or(Bytes{});
    default:
      return {};
  }
}

/// What the sum of a stage's gradients over its replicas needs beside them. 0 for one replica.
[[nodiscard]] Bytes sum_staging(const StageCosts& costs, int replicas);

}  // namespace stagecraft
