#pragma once

// What is left when a run is over: all ranks' events in one timeline, and summary.json.

#include "engine/core/worker.h"
#include "engine/records/metrics/run_summary.h"
#include "engine/run/resolve/setup.h"
#include "engine/run/save/run_dir.h"
#include "engine/run/show/clock_meetings.h"
#include "engine/run/show/reporter.h"
#include "engine/transport/transport.h"
#include "schedules/program/timeline.h"

#include <cstdint>
#include <string>
#include <vector>

namespace stagecraft {

struct RunResults {
  Timeline timeline;                ///< on the reporting rank only
  std::vector<Bytes> peak;          ///< measured, per rank
  std::vector<CardUse> cards;       ///< per rank; empty on CPUs
  std::vector<double> core_shares;  ///< per rank; as in RunSummary
  std::int64_t skipped_steps = 0;   ///< the most of any stage
};

/// Collective. `meetings` put the clocks of different machines beside each other; without any they are taken as
/// they are.
[[nodiscard]] RunResults gather_results(const RunSetup& setup, const Worker& worker, Transport& transport,
                                        const ClockMeetings& meetings);

[[nodiscard]] RunSummary summary_of(const RunSetup& setup, const RunResults& results,
                                    const RunReporter& reporter, std::int64_t steps, int stopped_by);

/// summary.json as it is; where an earlier session did not come to write it, what metrics.jsonl tells of the
/// `steps` that were made.
[[nodiscard]] RunSummary earlier_summary(const RunSetup& setup, const RunPaths& paths, std::int64_t steps);

/// Writes what only the end of a session writes and is missing: summary.json, and a timeline.json without events.
/// For a run that had made all its steps. Returns remarks for people.
[[nodiscard]] std::vector<std::string> write_missing_results(const RunPaths& paths, const RunSetup& setup);

/// Those of an earlier session go when this one has made a step: they would tell of other steps than
/// metrics.jsonl, should this session be killed. Throws InputError.
void remove_results(const RunPaths& paths);

}  // namespace stagecraft
