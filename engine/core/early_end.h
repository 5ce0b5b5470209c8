#pragma once

// How all ranks leave a segment at the same micro-batch, when one of them is asked to (a signal). Micro-batches
// pass through a pipeline one behind the other, so no rank may leave where it stands: others wait for what it
// would send. At each of a series of marks, every so many micro-batches, each rank says whether it was asked,
// without waiting, and some marks later it hears what all have said. The answer is the same everywhere, so all
// end at that mark: micro-batches before it are whole, and of those from it on none was begun.
//
// The marks are so far apart, and answers so late, that a rank that waits for an answer has done all that the
// others need to come to their marks (the lists may take micro-batches out of order, and slots are posted ahead).

#include "engine/core/rank_program.h"
#include "engine/transport/transport.h"

#include <functional>

namespace stagecraft {

class EarlyEnd {
 public:
  /// `asked`: whether this rank was asked to leave. The transport outlives this.
  EarlyEnd(const RankProgram& program, Transport& transport, std::function<bool()> asked);

  /// To be asked before each action of this rank's list that is a micro-batch's. False: it is left out.
  [[nodiscard]] bool goes_on(MicroBatch micro_batch);
  /// Behind the list: hears what is still to be heard. Collective. Whether the segment was left.
  [[nodiscard]] bool finish();

 private:
  void pass_mark();

  Transport& transport_;
  std::function<bool()> asked_;
  int micro_batches_;
  int apart_ = 1;   ///< micro-batches between marks
  int late_ = 1;    ///< marks between a question and its answer
  int mark_ = 0;    ///< the next mark's micro-batch
  int asking_ = 0;  ///< questions whose answers are to come
  bool left_ = false;
};

}  // namespace stagecraft
