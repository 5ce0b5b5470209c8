#include "engine/core/early_end.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace stagecraft {
namespace {

/// How far a rank's list goes ahead before it comes back to an earlier micro-batch, at most over all ranks.
int most_ahead(const LoweredProgram& program) {
  int most = 0;
  for (const std::vector<Action>& list : program.ranks) {
    int highest = std::numeric_limits<int>::min();
    for (const Action& action : list) {
      const MicroBatch micro_batch = micro_batch_of(action);
      if (!micro_batch.valid()) continue;
      highest = std::max(highest, micro_batch.value);
      most = std::max(most, highest - micro_batch.value);
    }
  }
  return most;
}

}  // namespace

MicroBatch micro_batch_of(const Action& action) {
  if (!is_transfer(action.op)) return action.micro_batch;
  return action.tag.is_loss() ? MicroBatch{} : action.tag.micro_batch();
}

EarlyEnd::EarlyEnd(const LoweredProgram& program, Transport& transport, std::function<bool()> asked)
    : transport_(transport),
      asked_(std::move(asked)),
      micro_batches_(static_cast<int>(program.groups_by_micro_batch().size())),
      apart_(std::max(1, most_ahead(program))),
      late_(program.placement.world() + 1) {}

bool EarlyEnd::goes_on(MicroBatch micro_batch) {
  while (!left_ && mark_ <= micro_batch.value) pass_mark();
  return micro_batch.value < mark_;
}

void EarlyEnd::pass_mark() {
  if (asking_ == late_) {
    --asking_;
    left_ = transport_.finish_agreement() != 0;
    if (left_) return;
  }
  transport_.begin_agreement(asked_() ? 1 : 0);
  ++asking_;
  mark_ += apart_;
}

bool EarlyEnd::finish() {
  while (!left_ && mark_ < micro_batches_) pass_mark();
  // Asked behind the last mark that could be answered in time: the segment is whole.
  for (; asking_ > 0; --asking_) (void)transport_.finish_agreement();
  return left_;
}

}  // namespace stagecraft
