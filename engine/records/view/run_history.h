#pragma once

// The steps and validations of a run in memory that does not grow with it: a run of up to kMostPoints steps
// step by step, a longer one in stretches of 2, 4, 8, ... steps.

#include "engine/records/metrics/metrics.h"

#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace stagecraft {

class RunHistory {
 public:
  static constexpr std::size_t kMostPoints = 2000;
  /// The newest steps, whose times are told with their spread.
  static constexpr std::size_t kRecent = 256;

  /// The mean and the ends of what is finite of a stretch's values.
  struct Range {
    double sum = 0, low = std::numeric_limits<double>::infinity(), high = -low;
    std::int64_t count = 0;
    void add(double value);
    void add(const Range& other);
    [[nodiscard]] std::optional<double> mean() const;
  };
  /// Steps of one stretch.
  struct Point {
    std::int64_t step = 0;  ///< the newest
    Range loss, norm, ms, samples_per_second;
    std::map<std::string, Range> terms;               ///< of the loss, by name
    std::optional<double> learning_rate, loss_scale;  ///< of the newest step
    std::int64_t skipped = 0;
    std::int64_t not_finite = 0;  ///< losses
  };
  struct Validation {
    std::int64_t step = 0;
    double loss = 0;  ///< NaN: no number
    std::optional<double> accuracy;
    std::map<std::string, double> terms;  ///< NaN as in `loss`
  };

  void add(const MetricsRecord& record);

  [[nodiscard]] const std::vector<Point>& points() const { return points_; }
  [[nodiscard]] const std::vector<Validation>& validations() const { return validations_; }
  [[nodiscard]] std::int64_t width() const { return width_; }  ///< steps per stretch
  [[nodiscard]] std::int64_t steps() const { return steps_; }  ///< the newest step's number; 0: none yet
  [[nodiscard]] std::int64_t lines() const { return lines_; }
  [[nodiscard]] std::int64_t skipped() const { return skipped_; }
  [[nodiscard]] const std::optional<MetricsRecord>& newest() const { return newest_; }
  /// Times of the newest steps, in no order, in ms. The run's first step, which still allocates, is none of
  /// them.
  [[nodiscard]] const std::vector<double>& recent_ms() const { return recent_; }

 private:
  void halve();

  std::vector<Point> points_;
  std::vector<Validation> validations_;
  std::vector<double> recent_;
  std::size_t next_recent_ = 0;
  std::int64_t width_ = 1, steps_ = 0, lines_ = 0, skipped_ = 0;
  std::optional<MetricsRecord> newest_;
};

}  // namespace stagecraft
