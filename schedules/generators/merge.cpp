#include "schedules/generators/assembly.h"

#include <cstdint>
#include <utility>

namespace stagecraft {
namespace {

using ReplicaLists = std::vector<ReplicaList>;

/// Runs all lists on ranks that take one forward or backward a tick, everything else at once.
class Merge {
 public:
  Merge(const ProgramHeader& header, ReplicaLists& lists)
      : stages_(header.placement.stages()),
        micro_batches_(header.micro_batches()),
        merged_(to_size(header.placement.world())),
        held_(merged_.size()),
        forward_done_(to_size(stages_ * std::int64_t{micro_batches_}), false),
        backward_done_(forward_done_.size(), false) {
    for (auto& list : lists) {
      const Cursor cursor{&list, 0};
      held_[list.rank().index()].push_back(cursors_.size());
      cursors_.push_back(cursor);
      remaining_ += list.actions().size();
    }
  }

  std::vector<std::vector<Action>> run() {
    while (remaining_ > 0) {
      const std::size_t before = remaining_;
      reduce_where_all_have_come();
      tick();
      STAGECRAFT_CHECK(remaining_ < before, "the stages' own orders wait for each other");
    }
    return std::move(merged_);
  }

 private:
  struct Cursor {
    ReplicaList* list;
    std::size_t next;
    [[nodiscard]] bool done() const { return next == list->actions().size(); }
    [[nodiscard]] const Action& head() const { return list->actions()[next]; }
  };

  std::size_t at(int stage, MicroBatch mb) const {
    return to_size(stage) * to_size(micro_batches_) + mb.index();
  }

  /// The forward or backward the list comes to next, past loads; null before a reduction or at the end.
  static const Action* next_compute(const Cursor& cursor) {
    const auto& actions = cursor.list->actions();
    for (std::size_t i = cursor.next; i < actions.size(); ++i) {
      if (is_compute(actions[i].op)) return &actions[i];
      if (actions[i].op != Op::load) return nullptr;
    }
    return nullptr;
  }

  bool ready(const Action& action) const {
    const int s = action.stage.value;
    if (action.op == Op::forward) return s == 0 || forward_done_[at(s - 1, action.micro_batch)];
    return s == stages_ - 1 || backward_done_[at(s + 1, action.micro_batch)];
  }

  void emit(Cursor& cursor) {
    merged_[cursor.list->rank().index()].push_back(cursor.head());
    ++cursor.next;
    --remaining_;
  }

  /// All members do a reduction in the same tick, so that every rank has its reductions in one global order.
  void reduce_where_all_have_come() {
    for (std::size_t c = 0; c < cursors_.size();) {
      std::size_t end = c;
      bool all = true;
      for (; end < cursors_.size() && cursors_[end].list->stage() == cursors_[c].list->stage(); ++end) {
        all = all && !cursors_[end].done() && cursors_[end].head().op == Op::reduce;
      }
      for (; c < end; ++c) {
        if (!all) continue;
        emit(cursors_[c]);
        take_free_actions(cursors_[c]);
      }
    }
  }

  /// Steps and reports take no tick.
  void take_free_actions(Cursor& cursor) {
    while (!cursor.done() && (cursor.head().op == Op::step || cursor.head().op == Op::report_loss)) {
      emit(cursor);
    }
  }

  void tick() {
    std::vector<const Action*> computed;
    for (const auto& held : held_) {
      Cursor* best = nullptr;
      const Action* best_action = nullptr;
      for (const std::size_t c : held) {
        const Action* action = next_compute(cursors_[c]);
        if (action == nullptr || !ready(*action)) continue;
        const auto key = [](const Action& a) { return std::pair{a.op == Op::backward, a.stage}; };
        if (best_action == nullptr || key(*action) > key(*best_action)) {
          best = &cursors_[c];
          best_action = action;
        }
      }
      if (best == nullptr) continue;
      while (&best->head() != best_action) emit(*best);
      emit(*best);
      take_free_actions(*best);
      computed.push_back(best_action);
    }
    // Marked only now: what a rank makes in this tick another can use in the next.
    for (const Action* action : computed) {
      (action->op == Op::forward ? forward_done_
                                 : backward_done_)[at(action->stage.value, action->micro_batch)] = true;
    }
  }

  int stages_;
  int micro_batches_;
  std::vector<std::vector<Action>> merged_;
  std::vector<Cursor> cursors_;                 // by stage, then replica
  std::vector<std::vector<std::size_t>> held_;  // per rank, into cursors_
  std::vector<bool> forward_done_;
  std::vector<bool> backward_done_;
  std::size_t remaining_ = 0;
};

std::vector<std::vector<Action>> merge(const ProgramHeader& header, ReplicaLists& lists) {
  if (lists.size() > to_size(header.placement.world())) return Merge(header, lists).run();
  // As many lists as ranks, and every rank has one: nothing to merge.
  std::vector<std::vector<Action>> ranks(lists.size());
  for (auto& list : lists) ranks[list.rank().index()] = std::move(list.actions());
  return ranks;
}

}  // namespace

ScheduleProgram merged_program(ProgramHeader header, const std::function<void(ReplicaList&)>& fill) {
  ScheduleProgram program{std::move(header), {}};
  const ComputeWriter writer(program);
  ReplicaLists lists;
  for (const StageReplica& at : stage_replicas(program.placement, program.micro_batches())) {
    fill(lists.emplace_back(writer, at));
  }
  program.ranks = merge(program, lists);
  return program;
}

}  // namespace stagecraft
