#pragma once

// One run directory as the page shows it, whatever its run is doing: not begun, running, resumed with its
// history cut back, finished, killed. Asked again and again it reads what is new, and computes anew what
// changed.

#include "base/json.h"
#include "engine/records/metrics/metrics_tally.h"
#include "engine/records/report/report.h"
#include "engine/records/view/run_condition.h"
#include "engine/records/view/run_history.h"
#include "engine/records/view/run_marks.h"
#include "engine/records/view/tailed_file.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace stagecraft {

class RunView {
 public:
  explicit RunView(const std::string& run_dir);

  /// Reads what is new, of the history `most_bytes` at most. False: there is more of it.
  bool follow(std::size_t most_bytes);
  /// As of the last follow(), at most some 500 kB: docs/guides/watching.md describes it. Throws nothing for
  /// files that are missing, broken or half-written; "remarks" names them. Without plan, report and timelines
  /// for whom `have` these, by the "version" of an earlier document.
  [[nodiscard]] Json document(std::int64_t have = -1);
  /// Its "progress" alone: how the run is, and how far.
  [[nodiscard]] Json progress();

 private:
  /// What tells that a file was replaced.
  struct Seen {
    std::uint64_t identity = 0, bytes = 0;
    bool operator==(const Seen&) const = default;
  };
  [[nodiscard]] static Seen look(const std::string& path);
  void read_plan();
  void read_results();
  void follow_live();
  void show_measured();
  void with_remark(const std::function<void()>& read);  ///< what it throws is a remark
  void follow_results();
  [[nodiscard]] Json series() const;
  /// Of the loss, by name: curves over the steps and the validations of series().
  [[nodiscard]] Json terms() const;
  void remark(const std::string& text) { remarks_.push_back(text); }

  RunPaths paths_;
  TailedFile metrics_;
  RunHistory history_;
  RunMarks marks_;
  std::int64_t broken_lines_ = 0;
  bool all_read_ = false;
  bool came_ = false;  ///< lines of metrics, by the last follow()
  MetricsTally tally_;
  std::int64_t told_steps_ = 0;  ///< of it, in the report
  std::int64_t version_ = 0;     ///< of what follows from the files below
  std::vector<Seen> results_seen_, live_seen_;
  RunFiles files_;                ///< but for the metrics, which are in history_
  std::int64_t total_steps_ = 0;  ///< 0: not known
  Json plan_, report_, timeline_, shares_, over_time_, predicted_, predicted_shares_;
  double predicted_step_ms_ = 0;
  std::string notes_;  ///< the report's remarks, lines
  std::vector<std::string> remarks_, result_remarks_, shares_left_out_;
};

/// What a page of these runs gets. `live`: it may ask again. `have`: per run, as above.
[[nodiscard]] Json document_of(std::vector<RunView>& runs, bool live,
                               const std::vector<std::int64_t>& have = {});

}  // namespace stagecraft
