#pragma once

// Schedules as PyTorch keeps them in files: torch.distributed.pipelining's CSV, the one that its schedule
// classes' _dump_csv and _load_csv write and read (torch 2.11 and 2.15). A row is a rank, a cell one action,
// [stage][what][micro-batch]:
//
//   0F0,0F1,2F0,,2F1,2I0,2W0       compute only: F forward, I input's gradient, W weights' gradient, B both
//   0F0,0SEND_F0,2RECV_F0,0F1,...  with communication: an activation leaves stage 0; stage 2 gets its input
//
// The rest of the vocabulary: SEND_B and RECV_B move gradients; WAIT_SEND_F and WAIT_SEND_B, which torch 2.15
// wants for every send and 2.11 does not know, are where the rank waits until one has left; UNSHARD, RESHARD,
// REDUCE_GRAD and 2.15's WAIT_REDUCE_GRAD (a stage, no micro-batch) are FSDP's. "(0F7;3B3)OVERLAP_F_B" joins
// actions that a runtime may run at once and PyTorch's own runs one after the other. An empty cell is an idle
// time step.
//
// A file's stages before the first one with a backward are frozen (ProgramHeader::gradient_from).
//
// A file says less than our programs do: it is one synchronous step, each stage lies on one rank, and there
// are no loads, optimizer steps, loss reports or norm agreements. Reading adds those the way our generators
// do; writing leaves them out. What has no counterpart on the other side (FSDP's actions, idle steps, which
// actions overlap) survives from file to file only, through PytorchSchedule.

#include "schedules/program/program.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace stagecraft {

enum class PytorchOp : std::uint8_t {
  idle,
  forward,
  backward,
  backward_input,
  backward_weight,
  send_forward,
  receive_forward,
  send_backward,
  receive_backward,
  wait_send_forward,
  wait_send_backward,
  unshard,
  reshard,
  reduce_grad,
  wait_reduce_grad,
};

/// The file's word for each; idle is the empty cell.
template <>
inline constexpr std::array enum_names<PytorchOp>{
    "",       "F",           "B",           "I",       "W",       "SEND_F",      "RECV_F",          "SEND_B",
    "RECV_B", "WAIT_SEND_F", "WAIT_SEND_B", "UNSHARD", "RESHARD", "REDUCE_GRAD", "WAIT_REDUCE_GRAD"};

/// The forward, backward or part of one that the word means, and its word; nothing for anything else.
[[nodiscard]] std::optional<Op> compute_op(PytorchOp op);
[[nodiscard]] std::optional<PytorchOp> pytorch_op(Op op);

struct PytorchAction {
  PytorchOp op = PytorchOp::idle;
  StageId stage{};
  MicroBatch micro_batch{};
  bool overlaps_next = false;  ///< shares its cell, an OVERLAP_F_B, with the action after it
  bool operator==(const PytorchAction&) const = default;
};

/// A file, cell by cell. What is read writes back to the same bytes, but for blanks and quotes around cells
/// and a missing end of the last line.
struct PytorchSchedule {
  std::vector<std::vector<PytorchAction>> rows{};  ///< one per rank
  bool crlf = true;                                ///< lines end in \r\n, as Python's csv module writes them

  [[nodiscard]] bool has_communication() const;  ///< whether anything is sent or received
  [[nodiscard]] bool states_waits() const;       ///< whether it has a WAIT_SEND
  bool operator==(const PytorchSchedule&) const = default;
};

/// Throws InputError with `file`, line and cell: malformed cells (PyTorch itself reads "0F0x" as "0F0" and
/// the older spelling "2BW0" as "2B"), ranks without an action, a stage computed on two ranks or on none,
/// transfers that no stage of the rank makes or expects, more than kMaxActions actions. Whether the schedule
/// makes sense is the checker's question.
[[nodiscard]] PytorchSchedule pytorch_schedule_from_csv(const std::string& text, const std::string& file);
[[nodiscard]] std::string to_csv(const PytorchSchedule& schedule);

/// The compute actions as a program of one step. Overlapped actions follow each other. Transfers are left
/// out: lowering makes its own.
[[nodiscard]] ScheduleProgram schedule_program(const PytorchSchedule& schedule);

/// A schedule with communication as what PyTorch's runtime (_PipelineScheduleRuntime) does with it, in its
/// order:
///   - a RECV posts its receive where it stands; the forward or backward that needs the tensor waits for it
///     right before it runs; each transfer has a buffer of its own until the step's end;
///   - a SEND starts where it stands. Where the schedule has WAIT_SENDs, each ends the wait for the SEND before
///     it, and a SEND without one is never waited for; where it has none (torch 2.11), all are waited for
///     after the rank's last action, the youngest first;
///   - stages next to each other on one rank hand over in memory.
/// PyTorch makes every SEND and RECV a batch of its own, so none are merged here. A send holds its rank up
/// until the receive is posted (the checker's rendezvous rule), where PyTorch's isend holds up a stream at
/// most: what is proved is at least as strong. Tags are ours; PyTorch's transfers have none and meet in
/// the order of their calls. Loads stand before the forwards that need them; steps, releases, and the
/// loss, which PyTorch keeps where it is made, come after everything else.
[[nodiscard]] LoweredProgram lowered_program(const PytorchSchedule& schedule);

/// A program as a compute-only schedule. PyTorch's older runtime (PipelineScheduleMulti) receives what a
/// neighbour makes in a time step at that step's end, so idle cells are put in until every action comes
/// in a later step than what it needs. Throws InputError for what the form cannot say (replicas, several
/// groups, recomputation, validation), RefusedError when the program stands still.
[[nodiscard]] PytorchSchedule pytorch_schedule(const ScheduleProgram& program);

/// Whether each SEND has its WAIT_SEND, as torch 2.15 wants it, or none has one, as 2.11 does.
enum class SendWaits : std::uint8_t { stated, left_out };

/// The same with communication: every tensor's SEND follows the action that makes it, and its RECV stands in
/// the receiver's row behind all that has run by then. All rows thus agree with one order of the whole, so
/// transfers without tags meet the right partner and none waits for ever, even if each holds up its stream.
/// With waits, an output's WAIT_SEND follows the backward that its gradient came back for; those of gradients, and
/// of outputs of frozen stages, stand at the row's end.
[[nodiscard]] PytorchSchedule pytorch_schedule_with_communication(const ScheduleProgram& program,
                                                                  SendWaits waits = SendWaits::stated);

}  // namespace stagecraft
