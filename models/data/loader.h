#pragma once

// Reads batches ahead of the program that uses them, on one thread of its own.

#include "base/ids.h"
#include "models/data/batch_source.h"
#include "models/data/dataset.h"
#include "models/data/sample_order.h"
#include "schedules/program/segments.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace stagecraft {

struct LoaderOptions {
  Split split = Split::train;
  std::uint64_t seed = 0;
  bool shuffle = true;
  std::int64_t batch = 1;            ///< samples of a mini-batch
  bool inputs = true;                ///< the rank has stage 0
  bool targets = true;               ///< the rank has the last stage
  std::vector<BatchField> fields{};  ///< that the stage reads besides
  int depth = kReadAhead;            ///< batches read and not yet taken; at least 1
  /// Batches that are read in less time than it takes to wake the reading thread are read by take() itself.
  bool short_reads_in_take = false;
};

[[nodiscard]] SampleOrder order_of(const Dataset& data, const LoaderOptions& options);

/// Used by one thread. The reading thread sleeps whenever `depth` batches wait to be taken and takes no part
/// in LibTorch's thread pools, so ranks as many as cores do not suffer from it. What reading throws comes out
/// of the take() that asks for that batch. May be destroyed at any time; the batch being read is finished
/// first. `data` must outlive the loader.
class Loader final : public BatchSource {
 public:
  Loader(const Dataset& data, LoaderOptions options);
  ~Loader() override;
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  void announce(const std::vector<MicroBatchRange>& ranges) override;

  /// One whose reading was not begun yet is read here and now.
  [[nodiscard]] Batch take(const MicroBatchRange& range) override;

  struct Ready {
    MicroBatchRange range;
    Batch batch;
  };
  /// The first announced micro-batch that was not taken, and takes it, where it has been read. Waits for
  /// nothing. Nothing where it is not there yet, or could not be read, which take() tells.
  [[nodiscard]] std::optional<Ready> take_ready();

  /// Waits until take_ready() has something to give, unless nothing is announced that it could.
  void await_ready();

  /// Time spent in take(), waiting or reading, since the loader was made: what reading ahead did not hide.
  [[nodiscard]] Seconds waited() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace stagecraft
