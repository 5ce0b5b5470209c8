#include "engine/core/early_end.h"

#include <algorithm>
#include <utility>

namespace stagecraft {

EarlyEnd::EarlyEnd(const RankProgram& program, Transport& transport, std::function<bool()> asked)
    : transport_(transport),
      asked_(std::move(asked)),
      micro_batches_(static_cast<int>(program.group_of.size())),
      apart_(std::max(1, program.most_ahead)),
      late_(program.header.placement.world() + 1) {}

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
