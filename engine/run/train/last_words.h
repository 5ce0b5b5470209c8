#pragma once

// What becomes of a rank's error before the rank ends: what can be saved is saved, and the error says where.

#include "engine/run/resolve/setup.h"
#include "engine/run/train/trainer.h"
#include "engine/transport/transport.h"

#include <exception>
#include <string>

namespace spdlog {
class logger;
}

namespace stagecraft {

/// What of a trainer is asked for when its rank fails.
class FailedTrainer {
 public:
  /// Whether the error came in a step or a validation: otherwise nothing was learned since the last checkpoint,
  /// or saving is what failed.
  [[nodiscard]] virtual bool in_segment() const = 0;
  [[nodiscard]] virtual const std::string& last_checkpoint() const = 0;
  /// Returns what the run can be gone on from, in words. Collective over `meeting`.
  [[nodiscard]] virtual std::string save_last_state(Transport& meeting, bool not_finite) = 0;

 protected:
  ~FailedTrainer() = default;
};

class LastWords {
 public:
  /// `trainer`: null for a rank that failed before it had one.
  LastWords(const RunSetup& setup, Transport& transport, Transport& meeting, FailedTrainer* trainer,
            RankPhase& doing, spdlog::logger& log)
      : setup_(setup),
        transport_(transport),
        meeting_(meeting),
        trainer_(trainer),
        doing_(doing),
        log_(log) {}

  /// The error to end with. The other ranks are called off, and met for the state of the last whole step. Throws nothing.
  [[nodiscard]] std::exception_ptr of(const std::exception_ptr& error);

 private:
  [[nodiscard]] std::string save(bool not_finite);
  void leave();
  [[nodiscard]] std::exception_ptr with_words(const std::exception_ptr& error,
                                              const std::string& words) const;

  const RunSetup& setup_;
  Transport& transport_;
  Transport& meeting_;
  FailedTrainer* trainer_;
  RankPhase& doing_;
  spdlog::logger& log_;
};

}  // namespace stagecraft
