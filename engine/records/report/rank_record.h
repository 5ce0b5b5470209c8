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

/// All events by the clock of records[reporter], the first at 0. Records may be of some of the ranks. Clocks of machines that never met are taken as they
/// are.
[[nodiscard]] Timeline merged(std::string title, std::vector<RankRecord> records, std::size_t reporter);

/// What ranks wrote last while the run went.
struct LiveRecords {
  std::vector<RankRecord> records;    ///< by rank, with the steps that all of them have
  std::vector<std::string> left_out;  ///< "the last steps of rank 1 are left out: FILE: ..."
};
/// Of `world` ranks. Nothing where none has written yet. A rank without a file, or with one that holds no record of it,
/// is left out. No records where the others have no step in common: ranks write one after another. Throws nothing.
[[nodiscard]] LiveRecords read_live_records(const RunPaths& paths, int world);

}  // namespace stagecraft
