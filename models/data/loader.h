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
  bool inputs = true;      ///< the rank has stage 0
  bool targets = true;     ///< the rank has the last stage
  int depth = kReadAhead;  ///< batches read and not yet taken; at least 1
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

  /// Micro-batches that will be taken, in that order behind those announced before. One that is announced
  /// already and was not taken yet is not read twice.
  void announce(const std::vector<MicroBatchRange>& ranges);

  /// The data of an announced micro-batch, once. Any order is safe: one that was not begun yet is read here
  /// and now.
  [[nodiscard]] Batch take(const MicroBatchRange& range);

  /// Time spent in take(), waiting or reading, since the loader was made: what reading ahead did not hide.
  [[nodiscard]] Seconds waited() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace stagecraft
