#pragma once

// What a rank shows of its last steps while the run goes: for `watch`, and for `report` where a run is killed.

#include "engine/core/worker.h"
#include "engine/records/report/rank_record.h"
#include "engine/records/report/share_history.h"
#include "engine/run/resolve/setup.h"
#include "engine/run/show/clock_meetings.h"
#include "engine/run/show/live_times.h"
#include "engine/run/show/slow_ranks.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <future>
#include <memory>
#include <string>

namespace stagecraft {

/// Of this rank, now. Waits for the device.
[[nodiscard]] RankRecord rank_record(const RunSetup& setup, Rank rank, const Worker& worker,
                                     const ClockMeetings& meetings);

/// Writes live/rank-N.json and shares/rank-N.json now and then (live_times.h). A thread of its own writes; a step waits
/// for nothing but the copy of some thousand events.
class LiveRecord {
 public:
  LiveRecord(const RunSetup& setup, const RunPaths& paths, Rank rank);
  LiveRecord(const LiveRecord&) = delete;
  LiveRecord& operator=(const LiveRecord&) = delete;
  ~LiveRecord();

  /// Whether this rank wants records by now: the trainer tells the others, beside a step.
  [[nodiscard]] bool is_wanted() const { return keeps_timeline_ && times_.wants(LiveTimes::Clock::now()); }
  /// Behind the steps from `before` to `after` of the run. `asked`: whether any rank wanted records, as all heard it.
  void steps_made(std::int64_t before, std::int64_t after, bool asked, const Worker& worker,
                  const ClockMeetings& meetings);
  /// Behind the last of the session's steps: waits for what is being written, and removes the last steps, of which the
  /// run's own files say more. The shares have them, too.
  void finish(const Worker& worker) noexcept;
  /// What people should know by what was written: why nothing could be, or which rank is slow; each once. Otherwise "".
  /// Throws TakenOverError.
  [[nodiscard]] std::string news();
  /// The plan that the run should take; on the reporting rank, where news() said that there is one.
  [[nodiscard]] const std::optional<BetterPlan>& better_plan() const { return better_; }

 private:
  /// Whether nothing is being written, within so long.
  [[nodiscard]] bool rested(std::chrono::seconds patience) const;

  const RunSetup& setup_;
  Rank rank_;
  std::string path_, shares_path_;
  ShareHistory shares_;
  bool keeps_timeline_;  ///< without one nothing is written
  LiveTimes times_;
  struct Written {
    std::string failure;
    SlowNews slow;
    std::exception_ptr taken;
  };
  std::future<Written> writing_;
  bool failed_ = false;  ///< and it was told
  /// Nobody waits for other ranks' records any more.
  std::shared_ptr<std::atomic<bool>> ending_ = std::make_shared<std::atomic<bool>>(false);
  std::optional<BetterPlan> better_;
  std::shared_ptr<SlowRanks> slow_;  ///< on the reporting rank of several
};

}  // namespace stagecraft
