#pragma once

// A step of a session that its ranks have got, and what becomes of it.

#include "engine/core/worker.h"
#include "engine/session/rank_crew.h"

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace stagecraft {

/// Where a rank's time went in a step.
struct RankSeconds {
  int rank = 0;
  Seconds compute{0};     ///< forwards, backwards, updates
  Seconds wait{0};        ///< for transfers
  Seconds collective{0};  ///< sums over replicas and the norm, waiting for the others included
  Seconds other{0};       ///< loading and bookkeeping
};

/// The same on every process.
struct SessionStep {
  StepReport report;
  Seconds took{0};
  std::vector<RankSeconds> ranks;
};

/// Outlives its session. Any thread may ask.
class StepUnderWay {
 public:
  /// `ranks`: of this process.
  StepUnderWay(Segment segment, std::size_t ranks) : segment_(std::move(segment)), texts_(ranks) {}

  /// Waits; `meanwhile` as CrewTask::wait has it. Throws the step's error, each time.
  [[nodiscard]] SessionStep result(const std::function<void()>& meanwhile) const;
  [[nodiscard]] bool over() const { return task_->over(); }
  [[nodiscard]] bool failed() const { return task_->failed(); }  ///< of one that is over
  /// Whoever asks for a result hears of an error there; if nobody does, the session's next call throws it.
  void mark_heard() { heard_ = true; }

 private:
  friend class Session;
  /// Of the rank at `place`, on its thread, when it is through: what result() makes of it.
  void note(std::size_t place, const StepReport* report, Rank rank, const std::vector<Event>& events);

  Segment segment_;
  std::vector<std::string> texts_;  ///< by rank
  std::shared_ptr<CrewTask> task_;
  std::atomic<bool> heard_ = false;
};

}  // namespace stagecraft
