#pragma once

// From orders of computations to programs: the loads, reductions, norm agreements, steps and reports around
// them are the same for all schedules, and are added here.

#include "schedules/program/orders.h"
#include "schedules/program/program.h"
#include "schedules/program/recompute.h"

#include <string>
#include <vector>

namespace stagecraft {

/// The header of a new program. Throws InputError for a placement or groups that cannot be (see
/// validate_header), or that make more than kMaxActions actions.
[[nodiscard]] ProgramHeader make_header(std::string schedule, SegmentKind kind, Placement placement,
                                        std::vector<int> group_sizes);

/// Appends forwards and backwards to a rank's list with what belongs to them: on stages that load
/// (ProgramHeader::loads) a load before the forward, on the last stage a loss report after the last forward of a group that a
/// replica has, unless its rank is the one that prints.
class ComputeWriter {
 public:
  /// Keeps a reference to `header`.
  explicit ComputeWriter(const ProgramHeader& header);

  /// `op` is a forward, a backward or one of its parts, or a recompute.
  void write(std::vector<Action>& list, Op op, StageId stage, MicroBatch micro_batch, Version version) const;
  [[nodiscard]] Group group_of(MicroBatch micro_batch) const { return groups_[micro_batch.index()]; }

 private:
  const ProgramHeader& header_;
  std::vector<Group> groups_;
};

/// A synchronous schedule decides one thing: in which order every rank computes (`orders[rank]`). The rest
/// follows.
[[nodiscard]] ScheduleProgram synchronous_program(ProgramHeader header, const Orders& orders, bool clip);

/// Makes these stages load as well (ProgramHeader::also_load, which is empty before): a load before each of
/// their forwards. Throws InputError for stages that cannot be in that list.
void add_loads(ScheduleProgram& program, const std::vector<StageId>& stages);

/// Weights that several layers hold (ProgramHeader::ties, which is empty before): on each rank that holds one a
/// sum of its gradients for each group, before the norm's agreement and the steps, in one order on all ranks.
/// Throws InputError for stages that cannot be in that list.
void add_ties(ScheduleProgram& program, const std::vector<std::vector<StageId>>& ties);

/// Boundaries between stages that are no neighbours (ProgramHeader::skips, which is empty before). No action is
/// added: what needs them reads the header. Throws InputError for stages between which there can be none.
void add_skips(ScheduleProgram& program, const std::vector<Skip>& skips);

/// Takes off what the stages before `gradient_from` (ProgramHeader::gradient_from, which is 0 before) have no need
/// of: backwards, recomputes and steps. Their forwards read version 0. Throws InputError where it is none of the
/// stages, or one of a tied weight behind it.
void freeze(ScheduleProgram& program, StageId gradient_from);

/// To a step's own order what its model and the request ask for: freeze(), insert_recomputes(), add_loads(), add_ties().
void complete(ScheduleProgram& program, StageId gradient_from, const RecomputeSettings& recompute,
              const std::vector<StageId>& also_load, const std::vector<std::vector<StageId>>& ties);

/// Ends a synchronous step on every rank: reductions (of frozen stages too, whose buffers forwards change), norm agreement (`clip`), steps, the printed report.
void append_flush(ScheduleProgram& program, bool clip);

}  // namespace stagecraft
