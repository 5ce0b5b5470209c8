#pragma once

// Moments of a run that are no steps: when a session began, which checkpoints were written. The log of rank 0
// has them, and `checkpoints/` has those that are still there.

#include "engine/records/metrics/run_paths.h"
#include "engine/records/view/tailed_file.h"

#include <cstdint>
#include <string_view>
#include <vector>

namespace stagecraft {

class RunMarks {
 public:
  explicit RunMarks(const RunPaths& paths) : paths_(paths), log_(paths.log(Rank{0})) {}

  struct Checkpoint {
    std::int64_t step = 0;
    bool kept = false;  ///< it is still there
  };
  /// Reads `most_bytes` of the log at most.
  void follow(std::size_t most_bytes);
  /// The newest ones, by step.
  [[nodiscard]] std::vector<Checkpoint> checkpoints() const;
  /// The step each later session went on from, in their order: 0 where it began from nothing.
  [[nodiscard]] const std::vector<std::int64_t>& restarts() const { return restarts_; }

  static constexpr std::size_t kMost = 1000;  ///< of each kind, the newest

 private:
  void take(std::string_view line);

  RunPaths paths_;
  TailedFile log_;
  bool begun_ = false;         ///< the first session has
  bool begins_again_ = false;  ///< the next line says from where
  std::vector<std::int64_t> restarts_, written_, kept_;
};

}  // namespace stagecraft
