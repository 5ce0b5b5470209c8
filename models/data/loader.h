#pragma once

// Reads batches ahead of the program that uses them, on one thread of its own.

#include "models/data/dataset.h"
#include "schedules/base/ids.h"
#include "schedules/segments.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace stagecraft {

/// One micro-batch's data. What was not asked for is undefined.
struct Batch {
  at::Tensor inputs;
  at::Tensor targets;
  std::int64_t samples = 0;
};

struct LoaderOptions {
  Split split = Split::train;
  std::uint64_t seed = 0;
  bool shuffle = true;
  bool inputs = true;   ///< the rank has stage 0
  bool targets = true;  ///< the rank has the last stage
  int depth = 2;        ///< batches read and not yet taken; at least 1
};

/// Used by one thread. The reading thread sleeps whenever `depth` batches wait to be taken and takes no part
/// in LibTorch's thread pools, so ranks as many as cores do not suffer from it. What reading throws comes out
/// of the take() that asks for that batch. May be destroyed at any time; the batch being read is finished
/// first. `data` must outlive the loader.
class Loader {
 public:
  Loader(const Dataset& data, LoaderOptions options);
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  /// Begins a segment: its micro-batches, and those of them this rank will take, in that order (all of them
  /// where it is left out). What is left of the segment before is forgotten.
  void start(const std::vector<MicroBatchRange>& segment);
  void start(const std::vector<MicroBatchRange>& segment, const std::vector<MicroBatch>& wanted);

  /// The data of one of the announced micro-batches, once each. Any order is safe: one that was not begun yet
  /// is read here and now.
  [[nodiscard]] Batch take(MicroBatch micro_batch);

  /// Time spent in take(), waiting or reading, since the loader was made: what reading ahead did not hide.
  [[nodiscard]] Seconds waited() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace stagecraft
