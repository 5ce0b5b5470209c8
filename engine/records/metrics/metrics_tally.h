#pragma once

// What the lines of metrics.jsonl tell of a run that wrote no summary, because it goes on or was killed.

#include "engine/records/metrics/metrics.h"
#include "engine/records/metrics/run_summary.h"
#include "engine/records/metrics/step_times.h"

#include <cstdint>
#include <optional>

namespace stagecraft {

class MetricsTally {
 public:
  /// In the order of the lines.
  void add(const MetricsRecord& record);
  /// Steps behind the figures.
  [[nodiscard]] std::int64_t steps() const { return times_.steps(); }
  /// Puts its figures into `summary`, and leaves the others as they are.
  void tell(RunSummary& summary) const;

 private:
  StepTimeSample times_;
  std::optional<MetricsRecord> last_step_, last_validation_;
};

}  // namespace stagecraft
