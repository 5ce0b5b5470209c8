#pragma once

// The stretches of a timeline in which its steps are made. Between two steps a checkpoint or a validation may
// lie; a rank may wait for the end of it inside the next step. Neither is the step's time.

#include "schedules/program/timeline.h"

#include <utility>
#include <vector>

namespace stagecraft {

class StepWindows {
 public:
  explicit StepWindows(const Timeline& timeline);
  [[nodiscard]] Seconds length() const { return before_.back(); }
  /// The part of the event that lies in a window.
  [[nodiscard]] Seconds inside(const Event& event) const;

 private:
  using Window = std::pair<Seconds, Seconds>;
  std::vector<Window> windows_;  // in order, apart
  std::vector<Seconds> before_;  // the length of all windows before each, and of all
};

/// Whether an event is a rank's work on the model: computing, or the optimizer's step.
[[nodiscard]] bool works(const Event& event);

}  // namespace stagecraft
