#pragma once

// A process whose threads a seed schedules (schedule.h), on a simulated disk: a child of this one, so that what ends it
// ends nothing else, and the next one begins anew.

#include "test/simulation/schedule.h"
#include "test/support/simulated_disk.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace stagecraft::test {

struct Ended {
  int code = 0;        ///< -1: it ended by a signal, which is a defect
  std::string said;    ///< by its body
  std::string errors;  ///< what it wrote to standard error
  std::int64_t disk_calls = 0;
  schedule::Counts counts;
};

/// What the process does: returns its exit code, and says why.
using ProcessBody = std::function<int(SimulatedDisk& disk, std::string& said)>;

/// Runs it to its end, from which `disk` is as the process left it, faults over. The process has so many seconds of real
/// time; then it is killed, as stuck.
[[nodiscard]] Ended run_process(std::unique_ptr<SimulatedDisk>& disk, std::uint64_t seed,
                                const schedule::Disturbance& disturbance, const ProcessBody& body);

}  // namespace stagecraft::test
