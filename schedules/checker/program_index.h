#pragma once

// What the proofs share: the findings they add to, and where in a program everything happens. A proof asks
// "where is the forward of (stage, micro-batch)?" instead of walking the lists again.

#include "schedules/checker/checker.h"
#include "schedules/program/transfer_numbers.h"

#include <string>
#include <utility>
#include <vector>

namespace stagecraft::checker {

/// Findings so far. More than 20 help nobody: the rest is dropped, and a proof may stop when `full`.
class Findings {
 public:
  static constexpr std::size_t kMost = 20;

  void add(Finding::Kind kind, std::string message, std::vector<std::string> cycle = {});
  [[nodiscard]] bool full() const { return list_.size() >= kMost; }
  [[nodiscard]] bool any() const { return !list_.empty(); }
  [[nodiscard]] std::vector<Finding> take() { return std::move(list_); }

 private:
  std::vector<Finding> list_;
};

/// The shape that every later proof relies on: lists and tables of matching sizes, every number that an
/// action uses in range, every action on a rank that may carry it out. False, with findings, when something
/// is not so; nothing else may look at the program then.
[[nodiscard]] bool well_formed(const LoweredProgram& program, Findings& findings);

/// The four ends of one transfer.
struct Transfer {
  ActionPlace post, wait, start, wait_send;
};

/// What is done for one (stage, micro-batch), all of it on one rank. A whole backward is both parts.
struct MicroBatchPlaces {
  ActionPlace forward, recompute, input_part, weight_part;
};

/// What one replica of a stage does for one accumulation.
struct Update {
  ActionPlace reduce, step;
};

/// Where everything happens in a well-formed program. Doing the same thing twice is a finding that the
/// constructor makes; the tables keep the first place.
class ProgramIndex {
 public:
  ProgramIndex(const LoweredProgram& well_formed_program, Findings& findings);

  [[nodiscard]] const LoweredProgram& program() const { return program_; }
  [[nodiscard]] const Action& action(ActionPlace place) const { return program_.action(place); }
  [[nodiscard]] std::string name(ActionPlace place) const { return program_.name(place); }

  [[nodiscard]] bool train() const { return program_.kind == SegmentKind::train; }
  /// Whether the stage has backwards and steps.
  [[nodiscard]] bool trains(StageId stage) const { return program_.has_backward(stage); }
  /// Whether a training forward is one after which nothing is kept for a backward.
  [[nodiscard]] bool keeps_nothing(StageId stage, MicroBatch micro_batch) const {
    return train() && (!trains(stage) || work(stage, micro_batch).recompute.found());
  }
  [[nodiscard]] int world() const { return static_cast<int>(program_.ranks.size()); }
  [[nodiscard]] int stages() const { return program_.placement.stages(); }
  [[nodiscard]] int micro_batches() const { return static_cast<int>(group_of_.size()); }
  [[nodiscard]] int groups() const { return program_.groups(); }
  [[nodiscard]] bool is_last(StageId stage) const { return stage.value == stages() - 1; }

  [[nodiscard]] Group group_of(MicroBatch micro_batch) const { return group_of_[micro_batch.index()]; }
  /// First micro-batch of a group; of the one past the last, the number of micro-batches.
  [[nodiscard]] int begin_of(Group group) const { return begin_of_[group.index()]; }
  [[nodiscard]] Rank rank_of(StageId stage, MicroBatch micro_batch) const {
    return program_.placement.rank_of(stage, micro_batch);
  }
  /// Whether `a` and `b` handle `micro_batch` on the same rank: a hand-off in memory, no transfer.
  [[nodiscard]] bool hand_off(StageId a, StageId b, MicroBatch micro_batch) const {
    return rank_of(a, micro_batch) == rank_of(b, micro_batch);
  }

  [[nodiscard]] const MicroBatchPlaces& work(StageId stage, MicroBatch micro_batch) const {
    return work_[stage.index() * group_of_.size() + micro_batch.index()];
  }
  /// Of a stage that loads (ProgramHeader::loads).
  [[nodiscard]] ActionPlace load(StageId stage, MicroBatch micro_batch) const {
    return loads_[load_index(stage, micro_batch)];
  }

  /// All (stage, rank) pairs, by stage, replicas in order.
  [[nodiscard]] const std::vector<StageReplica>& holders() const { return holders_; }
  [[nodiscard]] const Update& update(std::size_t holder, Group group) const {
    return updates_[by_group(holder, group)];
  }
  /// The micro-batches of a holder, in order.
  [[nodiscard]] std::vector<MicroBatch> micro_batches_of(std::size_t holder) const;
  [[nodiscard]] ActionPlace report(std::size_t holder, Group group) const {
    return reports_[by_group(holder, group)];
  }
  [[nodiscard]] ActionPlace agreement(Rank rank, Group group) const {
    return agreements_[by_group(rank.index(), group)];
  }
  /// Of a tied weight on a rank.
  [[nodiscard]] ActionPlace tie(Rank rank, TieId tie, Group group) const {
    return ties_[by_group(tie_row(rank, tie), group)];
  }
  /// The tied weights that layers of a stage hold.
  [[nodiscard]] std::vector<TieId> ties_of(StageId stage) const;
  /// Position in `holders` of a stage's first replica.
  [[nodiscard]] std::size_t first_holder(StageId stage) const { return first_holder_[stage.index()]; }
  /// The same, of the replica that sits on `rank`, which must hold the stage.
  [[nodiscard]] std::size_t holder_on(StageId stage, Rank rank) const;

  /// By tag number (transfer_numbers.h).
  [[nodiscard]] const std::vector<Transfer>& transfers() const { return transfers_; }
  /// Without ends when nothing names the tag.
  [[nodiscard]] const Transfer& transfer(const Tag& tag) const;

 private:
  void place(const Action& action, ActionPlace here);
  void once(ActionPlace& known, ActionPlace here);
  [[nodiscard]] std::size_t load_index(StageId stage, MicroBatch micro_batch) const {
    return load_row_[stage.index()] * group_of_.size() + micro_batch.index();
  }
  [[nodiscard]] std::size_t tie_row(Rank rank, TieId tie) const {
    return rank.index() * program_.ties.size() + tie.index();
  }
  [[nodiscard]] std::size_t by_group(std::size_t index, Group group) const {
    return index * static_cast<std::size_t>(groups()) + group.index();
  }

  const LoweredProgram& program_;
  Findings& findings_;
  std::vector<Group> group_of_;
  std::vector<int> begin_of_{0};
  std::vector<StageReplica> holders_;
  std::vector<std::size_t> first_holder_;  ///< per stage
  std::vector<MicroBatchPlaces> work_;
  std::vector<Update> updates_;
  std::vector<std::size_t> load_row_;    ///< per stage, in loads_
  std::vector<ActionPlace> loads_;       ///< (stage that loads, micro-batch)
  std::vector<ActionPlace> agreements_;  ///< (rank, group)
  std::vector<ActionPlace> reports_;     ///< (holder, group)
  std::vector<ActionPlace> ties_;        ///< (rank, tied weight, group)
  TagNumbers numbers_;
  std::vector<Transfer> transfers_;
};

}  // namespace stagecraft::checker
