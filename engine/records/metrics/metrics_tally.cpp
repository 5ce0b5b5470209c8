#include "engine/records/metrics/metrics_tally.h"

namespace stagecraft {

void MetricsTally::add(const MetricsRecord& record) {
  (record.validation ? last_validation_ : last_step_) = record;
  if (!record.validation) times_.add(Seconds{record.ms / 1e3});
}

void MetricsTally::tell(RunSummary& summary) const {
  summary.last_step = last_step_;
  summary.last_validation = last_validation_;
  summary.measured_steps = times_.steps();
  if (!last_step_) return;
  summary.steps = last_step_->step;
  if (times_.steps() == 0) return;
  summary.step = times_.times();
  if (summary.step.median.value > 0) {
    summary.samples_per_second =
        last_step_->samples_per_second * last_step_->ms / 1e3 / summary.step.median.value;
  }
}

}  // namespace stagecraft
