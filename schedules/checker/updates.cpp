// Proof 1, second half: what is done once per group. Every gradient enters exactly one step; gradients and
// buffer updates come in micro-batch order, which is what makes runs of all schedules equal to the bit.

#include "schedules/checker/proofs.h"

#include <fmt/format.h>

namespace stagecraft::checker {
namespace {

class Updates : ProofOf {
 public:
  Updates(const ProgramIndex& index, Findings& findings)
      : ProofOf(Finding::Kind::completeness, index, findings) {}

  void run() {
    const bool agreed = any_agreement();
    for (std::size_t h = 0; h < index_.holders().size() && !findings_.full(); ++h) {
      if (index_.train()) {
        for (int g = 0; g < index_.groups() && !findings_.full(); ++g) check_update(h, Group{g}, agreed);
      }
      check_order(h);
    }
  }

 private:
  void missing(const char* what, std::size_t h, Group group) {
    const StageReplica& at = index_.holders()[h];
    add(fmt::format("rank {}: no {} of group {} on stage {}; expected one", at.rank.value, what, group.value,
                    at.stage.value));
  }

  [[nodiscard]] bool any_agreement() const {
    for (const auto& list : index_.program().ranks) {
      for (const Action& action : list) {
        if (action.op == Op::agree_norm) return true;
      }
    }
    return false;
  }

  /// Gradients, then reduction (with several replicas) and the sums of tied weights, then norm agreement (if
  /// the program has any), step.
  void check_update(std::size_t h, Group group, bool agreed) {
    const StageReplica& at = index_.holders()[h];
    const Update& update = index_.update(h, group);
    const ActionPlace agreement = index_.agreement(at.rank, group);
    const bool steps = index_.trains(at.stage);
    if (steps && !update.step.found()) return missing("step", h, group);
    if (agreed && !agreement.found()) return missing("norm agreement", h, group);
    if (agreed && steps) needs(update.step, agreement, "the norm agreement of its group");
    const bool replicated = at.replicas > 1;
    if (replicated && !update.reduce.found()) return missing("reduction", h, group);
    if (replicated && !steps) {
      check_frozen(h, group);
    } else if (replicated) {
      needs(agreed ? agreement : update.step, update.reduce, "the reduction of its group");
    } else if (update.reduce.found()) {
      add(index_.name(update.reduce) + ": the stage has one replica, there is nothing to reduce");
    }
    for (const TieId tie : index_.ties_of(at.stage)) {
      const ActionPlace sum = index_.tie(at.rank, tie, group);
      if (!sum.found()) {
        add(fmt::format("rank {}: no sum of tied weight {} of group {}, which stage {} holds; expected one",
                        at.rank.value, tie.value, group.value, at.stage.value));
        return;
      }
      needs(agreed ? agreement : update.step, sum,
            fmt::format("the sum of tied weight {} of its group", tie.value));
    }
    // A replica without micro-batches in the group starts with this.
    if (steps) needs_closed(h, group, first_use(h, group));
  }

  /// The reduction of a frozen stage is of buffers that its forwards change.
  void check_frozen(std::size_t h, Group group) {
    const ActionPlace reduce = index_.update(h, group).reduce;
    for (const MicroBatch mb : index_.micro_batches_of(h)) {
      const ActionPlace forward = index_.work(index_.holders()[h].stage, mb).forward;
      if (index_.group_of(mb) == group && forward.found())
        needs(reduce, forward, "every forward of its group");
    }
    if (group.value == 0) return;
    const ActionPlace before = index_.update(h, Group{group.value - 1}).reduce;
    if (before.found()) needs(reduce, before, "the reduction of the group before it");
  }

  /// What first uses the sum of a group's gradients.
  [[nodiscard]] ActionPlace first_use(std::size_t h, Group group) const {
    const Update& update = index_.update(h, group);
    const StageReplica& at = index_.holders()[h];
    ActionPlace first = update.reduce;
    for (const TieId tie : index_.ties_of(at.stage)) {
      const ActionPlace sum = index_.tie(at.rank, tie, group);
      if (sum.found() && (!first.found() || sum.before(first))) first = sum;
    }
    if (first.found()) return first;
    const ActionPlace agreement = index_.agreement(at.rank, group);
    return agreement.found() ? agreement : update.step;
  }

  /// Micro-batches of a replica go forward in order and their gradients are added in order; a group's first
  /// gradient comes after the step before, as a stage has one accumulation.
  void check_order(std::size_t h) {
    const StageId stage = index_.holders()[h].stage;
    const MicroBatchPlaces* previous = nullptr;
    for (const MicroBatch mb : index_.micro_batches_of(h)) {
      const MicroBatchPlaces& work = index_.work(stage, mb);
      check_place(h, index_.group_of(mb), work, previous);
      previous = &work;
    }
  }

  void check_place(std::size_t h, Group group, const MicroBatchPlaces& work,
                   const MicroBatchPlaces* previous) {
    if (previous != nullptr && work.forward.before(previous->forward)) {
      add(fmt::format("{}: stands before {}; forwards of a stage go in micro-batch order",
                      index_.name(work.forward), index_.name(previous->forward)));
    }
    if (!work.weight_part.found()) return;
    if (previous != nullptr && work.weight_part.before(previous->weight_part)) {
      add(fmt::format("{}: stands before {}; gradients of a stage are added in micro-batch order",
                      index_.name(work.weight_part), index_.name(previous->weight_part)));
    }
    const ActionPlace use = first_use(h, group);
    if (use.found()) needs(use, work.weight_part, "every gradient of its group");
    needs_closed(h, group, work.weight_part);
  }

  /// A stage has one accumulation: nothing goes into `group`'s before the step of the group before it.
  void needs_closed(std::size_t h, Group group, ActionPlace here) {
    if (group.value == 0) return;
    const ActionPlace step = index_.update(h, Group{group.value - 1}).step;
    if (!step.found() || step.before(here)) return;
    add(fmt::format("{}: group {} is still open, its step comes only later: {}", index_.name(here),
                    group.value - 1, index_.name(step)));
  }
};

}  // namespace

void prove_updates(const ProgramIndex& index, Findings& findings) { Updates(index, findings).run(); }

}  // namespace stagecraft::checker
