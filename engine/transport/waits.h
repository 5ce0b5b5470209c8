#pragma once

// How long a rank waits for another one. All ranks go through the same phases together, and each phase has a
// bound: seconds for a transfer inside a step, but an hour for a rank that plans the run or writes its part
// of a checkpoint. Within the bound, signs of life (signs.h) tell a slow rank from a dead one, where the
// transport has them. Once steps have been measured, a wait inside one gives up earlier: a rank that takes many times as
// long as any step has taken hangs, though its process lives.
//
// Time counts while this process runs (base/stopwatch.h): a job that was suspended and continued
// goes on.
//
// Threads: belongs to one rank's thread.

#include "base/stopwatch.h"
#include "engine/transport/pulse.h"
#include "engine/transport/signs.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace stagecraft {

struct TransportOptions {
  Seconds timeout{300};  ///< the least bound of a wait inside a step; and the longest silence in any phase
  /// start_send blocks until its receive is posted (MPI_Ssend); what the checker assumes.
  bool synchronous_sends = false;
  Seconds start_up_timeout{3600};  ///< of one wait in Phase::start_up
  Seconds save_timeout{3600};      ///< of one wait in Phase::save
  double timeout_steps = 10;  ///< slowest steps that a wait inside one may last; 0: only the above bounds it
  Seconds timeout_pause{60};  ///< beside them: disks and networks that pause, machines that swap
  std::size_t text_piece = 64 << 20;  ///< bytes of a long text that travel at once, below 2 GiB
};

namespace transport {
/// What of the options all ranks share, and options with it.
[[nodiscard]] std::vector<double> numbers_of(const TransportOptions& options);
[[nodiscard]] TransportOptions options_from(const std::vector<double>& numbers, TransportOptions own);
}  // namespace transport

class Waits {
 public:
  /// Begins in Phase::step. `signs`: null where there are none.
  Waits(Rank rank, const TransportOptions& options, std::shared_ptr<Signs> signs = nullptr);

  [[nodiscard]] Phase phase() const { return phase_; }
  void enter(Phase phase);
  /// What the plan predicts of a step. A wait inside one may take kSteps times as long.
  void expect_step(Seconds predicted) { predicted_ = predicted; }
  /// `note` gets a sentence about each wait that takes long; once per wait.
  void on_long_wait(std::function<void(const std::string&)> note) { note_ = std::move(note); }
  /// Of the rank's thread; each look at a wait is a beat.
  [[nodiscard]] Pulse& pulse() { return pulse_; }
  /// Of one wait in the present phase.
  [[nodiscard]] Seconds bound() const;
  /// A step was made in so long, waits included.
  void step_took(Seconds time);
  /// Of one wait for ranks that are inside a step as this one is, from what steps have taken so far: timeout_steps times
  /// the slowest, and timeout_pause. Infinite outside steps, and before kMeasured of them.
  [[nodiscard]] Seconds measured_bound() const;

  /// A wait inside a step may be for a whole step of the slowest rank, and a rank may be slower than it was
  /// when it was measured.
  static constexpr double kSteps = 10;
  static constexpr std::int64_t kMeasured = 20;

 private:
  friend class Wait;

  [[nodiscard]] std::string measured_text() const;

  Rank rank_;
  TransportOptions options_;
  std::shared_ptr<Signs> signs_;
  Phase phase_ = Phase::step;
  Seconds predicted_{0};
  Seconds slowest_{0};
  std::int64_t measured_ = 0;  ///< steps
  Pulse pulse_;
  std::function<void(const std::string&)> note_;
};

/// The rank is in this phase while the object lives, then in the one before.
class InPhase {
 public:
  InPhase(Waits& waits, Phase phase) : waits_(waits), before_(waits.phase()) { waits_.enter(phase); }
  ~InPhase() { waits_.enter(before_); }
  InPhase(const InPhase&) = delete;
  InPhase& operator=(const InPhase&) = delete;

 private:
  Waits& waits_;
  Phase before_;
};

/// One wait. Cheap to begin and to check: transfers inside a step do so by the thousand.
class Wait {
 public:
  /// `begun`: what is waited for.
  explicit Wait(Waits& waits, Stopwatch::Clock::time_point begun = Stopwatch::Clock::now())
      : waits_(waits), begun_(begun) {}
  ~Wait();
  Wait(const Wait&) = delete;
  Wait& operator=(const Wait&) = delete;

  /// To be called again and again. Throws PeerError when the wait has lasted too long, or a rank is gone or
  /// silent for too long. `what` names the wait.
  void check(const std::function<std::string()>& what);

 private:
  void read_signs(Seconds spent, const std::function<std::string()>& what);
  [[nodiscard]] Seconds age() const;

  Waits& waits_;
  Stopwatch::Clock::time_point begun_;
  Stopwatch spent_;
  Seconds next_reading_{1};  ///< at the signs
  bool shown_ = false;       ///< the others know that this rank waits
  bool noted_ = false;
};

}  // namespace stagecraft
