#pragma once

// What one rank knows of its last steps, as ranks send it to the one that reports at a run's end, and as each writes it
// into the run directory while the run goes (live/rank-N.json). Needs no LibTorch: reports are made of it.

#include "base/json.h"
#include "engine/records/metrics/run_paths.h"
#include "schedules/program/timeline.h"

#include <optional>
#include <string>
#include <vector>

namespace stagecraft {

struct RankRecord {
  Rank rank;
  std::string name;                            ///< "rank 1 (stage 1)"
  std::string boot;                            ///< of its machine: ranks of one boot share a monotonic clock
  Seconds origin;                              ///< of that clock, where the times of `events` are 0
  std::vector<std::vector<Seconds>> meetings;  ///< with the ranks of other machines (clock_line.h)
  Bytes peak;                                  ///< of requested tensor bytes, so far
  std::optional<double> core_share{};          ///< that its thread got while it computed (base/core_share.h)
  std::vector<Event> events;                   ///< of the last steps
};

[[nodiscard]] Json record_json(const RankRecord& record);
/// Throws InputError at `file`.
[[nodiscard]] RankRecord record_from(const Json& json, const std::string& file);

/// All events by the clock of records[reporter], the first at 0. Clocks of machines that never met are taken as they
/// are.
[[nodiscard]] Timeline merged(std::string title, std::vector<RankRecord> records, std::size_t reporter);

/// What the `world` ranks wrote last while the run went, by rank, with the steps that all of them have. Empty where
/// there is none such: ranks write one after another, and a file that is missing or of something else is no record.
/// Throws nothing.
[[nodiscard]] std::vector<RankRecord> read_live_records(const RunPaths& paths, int world);

}  // namespace stagecraft
