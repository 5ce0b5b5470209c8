#pragma once

// What is left when a run is over: all ranks' events in one timeline, and summary.json.

#include "stagecraft/engine/metrics/run_summary.h"
#include "stagecraft/engine/run/reporter.h"
#include "stagecraft/engine/run/setup.h"
#include "stagecraft/engine/transport/transport.h"
#include "stagecraft/engine/worker.h"
#include "stagecraft/schedules/program/timeline.h"

#include <vector>

namespace stagecraft {

struct RunResults {
  Timeline timeline;               ///< on the reporting rank only
  std::vector<Bytes> peak;         ///< measured, per rank
  std::int64_t skipped_steps = 0;  ///< the most of any stage
};

/// Collective. `together`: the moment on this rank's monotonic clock at which all ranks left a barrier; it
/// puts the clocks of different machines beside each other.
[[nodiscard]] RunResults gather_results(const RunSetup& setup, const Worker& worker, Transport& transport,
                                        Seconds together);

[[nodiscard]] RunSummary summary_of(const RunSetup& setup, const RunResults& results,
                                    const RunReporter& reporter, std::int64_t steps, int stopped_by);

}  // namespace stagecraft
