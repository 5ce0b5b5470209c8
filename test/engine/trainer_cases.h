#pragma once

// What tests of whole runs share: a tiny config, runs of it in a folder of their own, and when two are the same.

#include "base/json.h"
#include "engine/records/metrics/metrics.h"
#include "engine/run/start/train.h"
#include "test/support/command.h"

#include <functional>
#include <string>
#include <vector>

namespace stagecraft::test {

/// 150 samples in batches of 32: five steps per epoch, the last one short.
[[nodiscard]] Json tiny_config();

struct Ran {
  std::string printed;
  TrainResult result;
};

/// Runs of one config in one run directory.
class Run {
 public:
  explicit Run(Json config) : config_(std::move(config)) { config_["run_dir"] = dir(); }

  /// `allowed`: changes of a resume.
  Ran train(bool resume = false, const std::vector<std::string>& overrides = {},
            const std::vector<std::string>& allowed = {}) const;
  /// The InputError that it ends with; empty: none.
  [[nodiscard]] std::string complaint(bool resume, const std::vector<std::string>& overrides = {},
                                      const std::vector<std::string>& allowed = {}) const;
  /// SIGTERM is raised when `line` is printed: in the middle of the run, on a rank's own thread.
  [[nodiscard]] TrainResult stopped_at(const std::string& line) const;
  /// `look` is called when `line` is printed, likewise.
  [[nodiscard]] TrainResult looked_at(const std::string& line, const std::function<void()>& look) const;

  [[nodiscard]] std::string dir() const { return folder_.path("run"); }
  [[nodiscard]] std::string checkpoint(int step) const;
  [[nodiscard]] std::vector<MetricsRecord> metrics() const { return read_metrics(RunPaths{dir()}.metrics()); }

 private:
  [[nodiscard]] TrainRequest request() const;

  ScratchFolder folder_;
  Json config_;
};

/// Everything of the records that is no time, to the bit.
void check_same(const std::vector<MetricsRecord>& a, const std::vector<MetricsRecord>& b);
/// Every file of two checkpoints.
void check_same_files(const std::string& a, const std::string& b);

}  // namespace stagecraft::test
