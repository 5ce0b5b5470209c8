#pragma once

// How long a session's steps took, in memory that does not grow with the run: every step of one of up to
// 131,072 steps, of a longer one as many chosen evenly.

#include "base/ids.h"
#include "engine/records/metrics/run_summary.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace stagecraft {

class StepTimeSample {
 public:
  /// The most steps whose times are held.
  static constexpr std::size_t kMost = 131'072;

  void add(Seconds time);

  /// Steps behind the figures: all but the first, which still allocates, where there are others.
  [[nodiscard]] std::int64_t steps() const;
  /// Quantiles of them. Exact up to kMost steps.
  [[nodiscard]] StepTimes times() const;
  /// Steps whose times are held now.
  [[nodiscard]] std::size_t held() const { return held_.size(); }

 private:
  struct Step {
    double time;
    std::uint64_t draw;
  };
  void thin_out();

  Seconds first_;
  std::int64_t added_ = 0;
  // Steps whose draw has so many zero bits at its end are held: half as many with each bit. Drawn by the
  // step's number, so that nothing periodic in a run (an epoch's last step) is favoured or left out.
  int zero_bits_ = 0;
  std::vector<Step> held_;
};

}  // namespace stagecraft
