#pragma once

// What a rank shows of its last steps while the run goes: for `watch`, and for `report` where a run is killed.

#include "engine/core/worker.h"
#include "engine/records/report/rank_record.h"
#include "engine/records/report/share_history.h"
#include "engine/run/resolve/setup.h"
#include "engine/run/show/clock_meetings.h"
#include "engine/run/show/slow_ranks.h"

#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <string>

namespace stagecraft {

/// Of this rank, now. Waits for the device.
[[nodiscard]] RankRecord rank_record(const RunSetup& setup, Rank rank, const Worker& worker,
                                     const ClockMeetings& meetings);

/// Writes live/rank-N.json and shares/rank-N.json behind steps that all ranks choose alike and without a word, some ten seconds apart by the
/// plan's prediction, so that their records are of the same steps. A thread of its own writes; a step waits for nothing
/// but the copy of some thousand events.
class LiveRecord {
 public:
  LiveRecord(const RunSetup& setup, const RunPaths& paths, Rank rank);
  LiveRecord(const LiveRecord&) = delete;
  LiveRecord& operator=(const LiveRecord&) = delete;
  ~LiveRecord();

  /// Behind the steps from `before` to `after` of the run.
  void steps_made(std::int64_t before, std::int64_t after, const Worker& worker,
                  const ClockMeetings& meetings);
  /// Behind the last of the session's steps: waits for what is being written, and removes the last steps, of which the
  /// run's own files say more. The shares have them, too.
  void finish(const Worker& worker) noexcept;
  /// What people should know by what was written: why nothing could be, or which rank is slow; each once. Otherwise "".
  [[nodiscard]] std::string news();

 private:
  [[nodiscard]] bool is_due(std::int64_t before, std::int64_t after) const;
  /// Whether nothing is being written, within so long.
  [[nodiscard]] bool rested(std::chrono::seconds patience) const;

  const RunSetup& setup_;
  Rank rank_;
  std::string path_, shares_path_;
  ShareHistory shares_;
  std::int64_t every_ = 0;  ///< steps; 0: never
  struct Written {
    std::string failure, slow;
  };
  std::future<Written> writing_;
  bool failed_ = false;              ///< and it was told
  std::shared_ptr<SlowRanks> slow_;  ///< on the reporting rank of several
};

}  // namespace stagecraft
