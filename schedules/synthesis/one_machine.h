#pragma once

// Bounds of a machine that does one job at a time. Each job has a head, before whose end it cannot begin, and
// a tail that follows it.

#include <vector>

namespace stagecraft::synthesis {

struct Job {
  double head = 0;
  double seconds = 0;
  double tail = 0;

  [[nodiscard]] double end() const { return head + seconds; }
  [[nodiscard]] double whole() const { return seconds + tail; }
};

/// The least makespan, tails included, of a machine that may interrupt its jobs: always the one with the
/// longest tail of those whose heads are over (Jackson's preemptive schedule; Carlier, "The one-machine
/// sequencing problem", EJOR 11, 1982, section 2). No machine is faster that may not interrupt.
[[nodiscard]] double preemptive_makespan(std::vector<Job> jobs);

/// When at the earliest all are done, whatever their tails: by order of their heads.
[[nodiscard]] double earliest_end(std::vector<Job> jobs);

/// The mirror image: how long it takes at least from the start of the first to the end of the last tail.
[[nodiscard]] double least_tail(std::vector<Job> jobs);

}  // namespace stagecraft::synthesis
