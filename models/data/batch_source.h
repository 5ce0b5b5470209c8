#pragma once

// Where a stage's data comes from, micro-batch by micro-batch.

#include "models/tensors/batch_fields.h"
#include "schedules/program/segments.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace stagecraft {

/// One micro-batch's data. What was not asked for is undefined.
struct Batch {
  at::Tensor inputs;
  at::Tensor targets;
  FieldTensors fields;
  std::int64_t samples = 0;
};

/// Used by one thread.
class BatchSource {
 public:
  virtual ~BatchSource() = default;

  /// Micro-batches that will be taken, in that order behind those announced before. One that is announced
  /// already and was not taken yet is not read twice.
  virtual void announce(const std::vector<MicroBatchRange>& ranges) = 0;

  /// The data of an announced micro-batch, once. Any order is safe. Throws what reading it threw.
  [[nodiscard]] virtual Batch take(const MicroBatchRange& range) = 0;
};

}  // namespace stagecraft
