#pragma once

// The actions a program is made of. A schedule is nothing but lists of these, one per rank. The generator
// writes them, the checker proves them, the simulator prices them, the engine executes them and the report
// compares.

#include "base/describe.h"
#include "base/ids.h"

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace stagecraft {

enum class Op : std::uint8_t {
  // The schedule level: what people read and write.
  load,             ///< micro-batch data (inputs on stage 0, targets on the last stage) and its sample count
  forward,          ///< reads what came to the stage and weights `version`; keeps what backward needs
  backward_input,   ///< gradient of the stage's input: the part the previous stage waits for
  backward_weight,  ///< gradient of the weights, added into accumulation `group`: can wait
  backward,         ///< both
  recompute,        ///< forward again just before backward, from the kept input
  /// Gradients of accumulation `group` summed over the stage's replicas: waits for the sum, which a rank
  /// joins with its last backward into the group (reductions.h).
  reduce,
  /// Gradients of tied weight `tie` of accumulation `group` summed over all layers that hold it, and their
  /// stages' replicas: waits for the sum, as a reduce does. Once on each rank that holds such a layer.
  tie,
  agree_norm,  ///< all ranks exchange the norms of the gradients of accumulation `group`: the global one for clipping
  step,  ///< optimizer update from accumulation `group`: writes `version` + 1
  /// The loss of accumulation `group` goes to stage 0's first replica, ranks[0][0], which prints it: there
  /// it stands after the step and gathers the parts, on every other rank it sends that rank's part, right
  /// after the group's last forward. Where the only part is the printing rank's own there is but one.
  report_loss,
  // Added by lowering: every transfer and buffer.
  post_receive,  ///< non-blocking: `slot` waits for `tag`
  wait_receive,  ///< blocks until `tag` is in `slot`
  start_send,    ///< `tag` leaves; under the rendezvous rule blocks until its receive is posted
  wait_send,     ///< blocks until the sent tensor may be reused
  release,       ///< `slot` is free; whoever still reads it is wrong
};

template <>
inline constexpr std::array enum_names<Op>{"load",         "forward",    "backward_input", "backward_weight",
                                           "backward",     "recompute",  "reduce",         "tie",
                                           "agree_norm",   "step",       "report_loss",    "post_receive",
                                           "wait_receive", "start_send", "wait_send",      "release"};

enum class Payload : std::uint8_t { activation, gradient, loss };

template <>
inline constexpr std::array enum_names<Payload>{"activation", "gradient", "loss"};

/// Names one transfer of a segment, uniquely: with two ranks previous and next are the same peer, and V
/// placements break FIFO order, so nothing less would do.
struct Tag {
  Payload payload = Payload::activation;
  StageId from{};
  StageId to{};
  std::int32_t number = -1;  ///< as files and messages have it: micro_batch() or group()
  std::int32_t index = 0;    ///< likewise: tensor(), replica() or phase()

  /// What stage `from` makes of a micro-batch for the next stage, and for the previous one.
  [[nodiscard]] static constexpr Tag activation(StageId from, MicroBatch micro_batch) {
    return {Payload::activation, from, StageId{from.value + 1}, micro_batch.value};
  }
  [[nodiscard]] static constexpr Tag gradient(StageId from, MicroBatch micro_batch) {
    return {Payload::gradient, from, StageId{from.value - 1}, micro_batch.value};
  }
  /// The same between any two stages (ProgramHeader::skips).
  [[nodiscard]] static constexpr Tag activation(StageId from, StageId to, MicroBatch micro_batch) {
    return {Payload::activation, from, to, micro_batch.value};
  }
  [[nodiscard]] static constexpr Tag gradient(StageId from, StageId to, MicroBatch micro_batch) {
    return {Payload::gradient, from, to, micro_batch.value};
  }
  /// Of the part of a group's loss that a replica of the last stage has.
  [[nodiscard]] static constexpr Tag loss(StageId last, Group group, std::int32_t replica) {
    return {Payload::loss, last, StageId{0}, group.value, replica};
  }
  /// Of the sum of a stage's gradients over its replicas.
  [[nodiscard]] static constexpr Tag reduction(StageId stage, Group group, std::int32_t phase = 0) {
    return {Payload::gradient, stage, stage, group.value, phase};
  }

  /// Of the sum of a tied weight's gradients over those who hold it.
  [[nodiscard]] static constexpr Tag tied(TieId tie, Group group, std::int32_t phase = 0) {
    return {Payload::gradient, StageId{tie.value}, StageId{tie.value}, group.value, kTiedPhases + phase};
  }

  /// Of the sum of the norms of a group's gradients, of which each is one rank's.
  [[nodiscard]] static constexpr Tag norms(Group group) {
    return {Payload::gradient, StageId{0}, StageId{0}, group.value, kNorms};
  }

  [[nodiscard]] constexpr bool is_loss() const { return payload == Payload::loss; }
  [[nodiscard]] constexpr bool is_reduction() const { return payload == Payload::gradient && from == to; }
  [[nodiscard]] constexpr bool is_tied() const {
    return is_reduction() && index >= kTiedPhases && index < kNorms;
  }
  [[nodiscard]] constexpr bool is_norms() const { return is_reduction() && index == kNorms; }
  /// Activations and gradients that cross a boundary have micro-batch and tensor, losses group and replica,
  /// reductions group and phase. Asking for what the kind does not have is an InternalError.
  [[nodiscard]] constexpr MicroBatch micro_batch() const { return MicroBatch{of(crosses(), number)}; }
  [[nodiscard]] constexpr std::int32_t tensor() const { return of(crosses(), index); }
  [[nodiscard]] constexpr Group group() const { return Group{of(!crosses(), number)}; }
  [[nodiscard]] constexpr std::int32_t replica() const { return of(is_loss(), index); }
  [[nodiscard]] constexpr std::int32_t phase() const { return of(is_reduction(), index); }

  constexpr auto operator<=>(const Tag&) const = default;

  /// The same of a later phase of the same sum.
  [[nodiscard]] constexpr Tag of_phase(std::int32_t later) const {
    Tag tag = *this;
    tag.index = phase() + later;
    return tag;
  }

 private:
  static constexpr std::int32_t kTiedPhases = 2;  ///< behind those of reductions
  static constexpr std::int32_t kNorms = 4;       ///< behind those of ties
  [[nodiscard]] constexpr bool crosses() const { return !is_loss() && !is_reduction(); }
  [[nodiscard]] constexpr std::int32_t of(bool has, std::int32_t value) const {
    if (!has) refuse();
    return value;
  }
  [[noreturn]] void refuse() const;
};

/// One action. Fields that an op does not use stay "none".
struct Action {
  Op op = Op::forward;
  StageId stage{};
  MicroBatch micro_batch{};
  Version version{};  ///< weights read; for step the version read, writing version + 1
  Group group{};      ///< accumulation fed, reduced, agreed on, stepped or reported
  TieId tie{};        ///< of a tie: which weight
  Tag tag{};          ///< transfers only
  /// Transfers and release; on a lowered forward or backward the slot that what comes from its neighbour lies
  /// in, none for a hand-off on the same rank.
  Slot slot{};

  constexpr auto operator<=>(const Action&) const = default;
};

[[nodiscard]] constexpr bool is_transfer(Op op) {
  return op == Op::post_receive || op == Op::wait_receive || op == Op::start_send || op == Op::wait_send;
}
[[nodiscard]] constexpr bool is_compute(Op op) {
  return op == Op::forward || op == Op::backward_input || op == Op::backward_weight || op == Op::backward ||
         op == Op::recompute;
}

/// A whole backward is both parts.
[[nodiscard]] constexpr bool is_input_part(Op op) { return op == Op::backward_input || op == Op::backward; }
[[nodiscard]] constexpr bool is_weight_part(Op op) { return op == Op::backward_weight || op == Op::backward; }

/// The letter of a schedule-level op in the text form of programs and in pictures; '?' for what lowering
/// adds.
[[nodiscard]] char letter_of(Op op);
[[nodiscard]] std::optional<Op> op_of(char letter);

/// For people and messages: "forward of micro-batch 3 on stage 1", "wait for activation 3 from stage 0".
[[nodiscard]] std::string describe_action(const Action& action);
[[nodiscard]] std::string describe_tag(const Tag& tag);

}  // namespace stagecraft

template <>
struct std::hash<stagecraft::Tag> {
  std::size_t operator()(const stagecraft::Tag& tag) const noexcept {
    const auto mix = [](std::uint64_t h, std::int32_t v) {
      return (h ^ static_cast<std::uint32_t>(v)) * 0x9E3779B97F4A7C15ULL;
    };
    std::uint64_t h = static_cast<std::uint64_t>(tag.payload) + 1;
    h = mix(mix(mix(mix(h, tag.from.value), tag.to.value), tag.number), tag.index);
    return static_cast<std::size_t>(h ^ (h >> 29U));
  }
};
