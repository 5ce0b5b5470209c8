#pragma once

// The runs that a model's compiled code was made for. In others its layers compute without it, which rounds
// otherwise.

#include <cstdint>
#include <string>
#include <vector>

namespace stagecraft {

struct CompiledFor {
  std::vector<std::int64_t> micro_batches;  ///< samples in each
  int threads = 1;                          ///< per rank

  /// "micro-batches of 4 samples with 1 thread per rank"
  [[nodiscard]] std::string text() const;
  /// Why no full micro-batch of such a run is computed by the code, as "it is for 1 thread per rank, and this run
  /// has 2"; empty: some are.
  [[nodiscard]] std::string why_unused(std::int64_t micro_batch, int threads_per_rank) const;
};

}  // namespace stagecraft
