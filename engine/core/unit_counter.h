#pragma once

// What micro-batches weigh where samples weigh differently (Loss::units): targets that are padding do not
// count. Read off the data set: each rank finds the share of its micro-batches without asking the others.

#include "models/data/loader.h"
#include "models/losses/loss.h"

#include <cstdint>

namespace stagecraft {

class UnitCounter {
 public:
  /// `options`: of the split, with the fields that the loss reads. All outlive this.
  UnitCounter(const Dataset& data, const Loss& loss, LoaderOptions options);

  /// Reads the micro-batch's fields, on the calling thread.
  [[nodiscard]] std::int64_t of(const MicroBatchRange& range) const;

 private:
  const Dataset& data_;
  const Loss& loss_;
  LoaderOptions options_;
  SampleOrder order_;
};

}  // namespace stagecraft
