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
// Stages on one rank hand over in memory: no transfer. A frozen stage (ProgramHeader::gradient_from) releases a
// slot behind its forward, and no gradient goes to it.
//
// Skips (ProgramHeader::skips) are boundaries like those between neighbours: their receives, slots and sends
// go by the same rules. An action names the slot of what comes from its neighbour; a skip's slot is the one
// that its receive was posted into.
//
// Losses travel to stage 0's first replica, ranks[0][0], the same way: from every replica of the last stage
// that has micro-batches of the group, except itself, with tag {loss, last stage, stage 0, group, index =
// replica}; waited for just before that rank's report_loss.
//
// They have slots for one group per stage and one more, or more where the transport's rules need them.
//
// What lowering relies on: the tensor an action sends shares no memory with the slots it reads (a stage that
// only reshapes must copy), because a slot may be released and refilled before the send is over.
//
// A *channel* is a receiving rank's (payload, from stage, to stage): its senders may be several replicas.
// Where the transport has no tags, receives are posted in the order in which its messages are sent
// (posting_order.h).

#include "schedules/program/program.h"
#include "schedules/rules/transport_rules.h"

#include <optional>
#include <vector>

namespace stagecraft {

/// Receive slots of one channel.
struct ChannelSlots {
  Rank rank;
  SlotInfo channel;
  int slots = 0;
  int transfers = 0;  ///< that arrive on it in the segment: more slots are of no use
  int held = 0;       ///< that are read at once: fewer slots cannot do
};

struct LoweringOptions {
  /// Receive slots of every boundary channel. 0: each channel has as many as it reads at once, plus
  /// `extra_slots`, plus more where the rules need them or speed does; a skip's has one more for each stage
  /// that it passes. Never more than it has transfers.
  int slots_per_channel = 0;
  /// Slots beyond those read at once, so that a transfer can be under way while all others are read.
  int extra_slots = 1;
  /// Whether there are more where with fewer the schedule would take longer (TickClock in transfer_run.h).
  bool slots_for_speed = true;
  /// Sends of one (rank, payload, from stage, to stage) that may be under way before the oldest is waited
  /// for.
  int sends_in_flight = 2;
  /// What the program must finish under. With a launch order shared by a pair of ranks no placing of receives
  /// that is as early as this one has an order for both: such programs are lowered for the checker to refuse.
  TransportRules rules{};
  const CostTable* costs = nullptr;  ///< message sizes, where the rules ask for them
  /// These channels get exactly so many slots, whatever is said above.
  std::vector<ChannelSlots> channels{};
};

/// Linear in the number of actions. A program that is incomplete or inconsistent is lowered as it stands, for
/// the checker to refuse; so is one that deadlocks, with as many slots as `slots_per_channel` allows. Throws
/// RefusedError when that is fewer than a channel reads at once, InputError for negative options.
[[nodiscard]] LoweredProgram lower(const ScheduleProgram& program, const LoweringOptions& options = {});

/// The least number of slots, the same on every boundary channel, with which the program finishes. 0 when it
/// has no boundary transfers; nothing when no number works. Of `options` only rules, costs and
/// sends_in_flight count.
[[nodiscard]] std::optional<int> least_slots(const ScheduleProgram& program,
                                             const LoweringOptions& options = {});

/// The least number of slots of every channel on its own.
struct LeastSlots {
  int uniform = 0;                     ///< `least_slots`
  std::vector<ChannelSlots> channels;  ///< by rank; losses' too
  int total = 0;                       ///< their sum
  /// Every channel has as few as it reads at once: no program of this order has fewer anywhere. Otherwise no
  /// channel can do with fewer while the others keep theirs, though another choice may have a smaller total.
  bool exact = false;
};
/// First all channels get as many as they read at once, which most often works: one run along the program.
/// Where it does not, halves of the channels are brought down to that while the others keep what is known to
/// suffice, a half that cannot is halved again, and a single channel is searched by bisection: log2 of the
/// channels and of the slots runs for each channel that needs more. Nothing when no number of slots works.
[[nodiscard]] std::optional<LeastSlots> least_channel_slots(const ScheduleProgram& program,
                                                            const LoweringOptions& options = {});

}  // namespace stagecraft
