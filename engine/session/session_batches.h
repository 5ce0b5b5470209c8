#pragma once

// The batches that a program brings to a session: compared with what the model takes, laid where the ranks read them,
// and cut into micro-batches.

#include "engine/run/resolve/setup.h"
#include "models/data/given.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace stagecraft {

class SessionBatches {
 public:
  /// Keeps a reference to `setup`, whose data is of type "given". `name` stands for the config in messages.
  SessionBatches(const RunSetup& setup, const std::string& name);

  /// What workers read.
  [[nodiscard]] const Dataset& read() const { return *batches_; }

  /// Copies `batch`, in place of the one before the last, which nobody may read any more. `sizes`: samples of each
  /// micro-batch; empty: as the config cuts it, the last one short. Throws InputError for numbers and sizes that the
  /// model does not take.
  [[nodiscard]] Segment take(SegmentKind kind, std::int64_t first_step, const GivenTensors& batch,
                             const std::vector<std::int64_t>& sizes);

 private:
  /// Reads all that the model reads of the batch, which compares it.
  void check(std::int64_t first) const;
  [[nodiscard]] Segment cut(SegmentKind kind, std::int64_t first_step, std::int64_t first,
                            const std::vector<std::int64_t>& sizes) const;
  void refuse_small(const Segment& segment) const;

  const RunSetup& setup_;
  std::unique_ptr<Dataset> checked_;  ///< batches, whose numbers are compared with what the model takes
  GivenBatches* batches_ = nullptr;   ///< the same without
  std::vector<std::int64_t> least_samples_;  ///< of a micro-batch, by layer
  std::int64_t taken_ = 0;                   ///< each is read as an epoch of its own
};

}  // namespace stagecraft
