#pragma once

// The one rank that hears of losses turns them into metrics lines and into what people see.

#include "engine/core/worker.h"
#include "engine/records/metrics/metrics.h"
#include "engine/records/metrics/step_times.h"
#include "engine/run/resolve/setup.h"
#include "engine/run/show/progress.h"

#include <chrono>
#include <optional>

namespace stagecraft {

class RunReporter {
 public:
  RunReporter(const RunSetup& setup, const std::string& metrics_path, const Screen& screen);

  /// The clock of the next step or validation starts now: what happened since the last report (a checkpoint,
  /// a validation) is not the next step's time.
  void restart_clock();
  /// Throws NotFiniteError for a loss that is not finite, where such steps are not skipped.
  void step(const StepReport& report);
  void validation(const StepReport& report, std::int64_t steps_made);
  /// Every line of metrics.jsonl will be there after a power cut.
  void sync() { metrics_.sync(); }
  /// The newest step in metrics.jsonl, or owed to it.
  [[nodiscard]] std::int64_t noted_step() const { return noted_step_; }
  /// A line for people, above the progress bar.
  void show(const std::string& line);
  /// Takes the progress bar away for good.
  void finish() { progress_.reset(); }

  /// Of this process's steps.
  [[nodiscard]] const StepTimeSample& step_times() const { return step_times_; }
  [[nodiscard]] const std::optional<MetricsRecord>& last_step() const { return last_step_; }
  [[nodiscard]] const std::optional<MetricsRecord>& last_validation() const { return last_validation_; }

 private:
  using Clock = std::chrono::steady_clock;
  [[nodiscard]] Seconds lap();
  /// Throws InputError where the line cannot be written and the run must not go on.
  void write(const MetricsRecord& record);
  static void fill_rates(MetricsRecord& record, const StepReport& report, Seconds time);

  const RunSetup& setup_;
  MetricsWriter metrics_;
  Print print_;
  std::optional<ProgressBar> progress_;
  std::int64_t noted_step_;
  bool told_ = false;  ///< that lines wait to be written
  Clock::time_point began_ = Clock::now();
  Clock::time_point mark_ = Clock::now();
  StepTimeSample step_times_;
  std::optional<MetricsRecord> last_step_, last_validation_;
};

}  // namespace stagecraft
