#pragma once

// Lowering: from what people read to what a rank does. Adds every transfer with its buffer:
//   - a post_receive as early as its slot is free: at the start of the list for the first ones of a channel,
//     then right after the release that freed the slot, so that a sender under the rendezvous rule never
//     waits for the receiver's compute longer than the slots force it to;
//   - a wait_receive just before the first action that reads the slot, a release just after the last one that
//     does. An activation is read until its backward (its weight part, where split): the slot *is* the kept
//     input, there is no copy. An output gradient is read until the backward, or the weight part;
//   - a start_send just after the action that makes the tensor and after the releases and posts that follow
//     that action;
//   - a wait_send before the tensor's memory is needed again: of an activation at latest just before the
//     backward of that stage and micro-batch, of any before more than `sends_in_flight` of one boundary would
//     be under way, of the rest at the segment's end.
// Neighbouring stages on one rank hand over in memory: no transfer.
//
// Losses travel to stage 0's first replica, ranks[0][0], the same way: from every replica of the last stage
// that has micro-batches of the group, except itself, with tag {loss, last stage, stage 0, group, index =
// replica}; waited for just before that rank's report_loss.
//
// They have slots for one group a stage and one more, or more where the rendezvous rule needs them.
//
// What lowering relies on: the tensor an action sends shares no memory with the slots it reads (a stage that
// only reshapes must copy), because a slot may be released and refilled before the send is over.
//
// A *channel* is a receiving rank's (payload, from stage, to stage): its senders may be several replicas.

#include "schedules/program.h"

#include <optional>

namespace stagecraft {

struct LoweringOptions {
  /// Receive slots of every boundary channel. 0: each channel has as many as it reads at once, plus
  /// `extra_slots`, plus more where the rendezvous rule needs them, or where with fewer the schedule would
  /// take longer (unit_time.h). Never more than it has transfers.
  int slots_per_channel = 0;
  /// Slots beyond those read at once, so that a transfer can be under way while all others are read.
  int extra_slots = 1;
  /// Sends of one (rank, payload, from stage, to stage) that may be under way before the oldest is waited
  /// for.
  int sends_in_flight = 2;
};

/// Linear in the number of actions. A program that is incomplete or inconsistent is lowered as it stands, for
/// the checker to refuse; so is one that deadlocks, with as many slots as `slots_per_channel` allows. Throws
/// RefusedError when that is fewer than a channel reads at once, InputError for negative options.
[[nodiscard]] LoweredProgram lower(const ScheduleProgram& program, const LoweringOptions& options = {});

/// The least number of slots, the same on every boundary channel, with which the program finishes under the
/// rendezvous rule. 0 when it has no boundary transfers; nothing when no number works.
[[nodiscard]] std::optional<int> least_slots(const ScheduleProgram& program);

}  // namespace stagecraft
