#pragma once

// Where a rank's time went, over the whole run: shares/rank-N.json in the run directory. A rank adds what its last
// steps were whenever it shows them (live_record.h), so that there are some ten seconds between two entries. Beyond
// kMost entries neighbours become one, twice as wide: a file stays some ten kilobytes however long the run goes.

#include "base/json.h"
#include "engine/records/metrics/run_paths.h"
#include "schedules/program/timeline.h"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace stagecraft {

class ShareHistory {
 public:
  static constexpr std::size_t kMost = 256;

  /// The newest of `events`, all of one rank, one step or several: the mean of them is an entry.
  void add(const std::vector<Event>& events);
  /// A run that goes on from `step` makes the later ones again.
  void forget_from(std::int64_t step);

  /// Entries are means over the steps from a multiple of this on, up to the next. A power of two.
  [[nodiscard]] std::int64_t width() const { return width_; }
  void widen(std::int64_t width);

  struct Entry {
    int samples = 0;
    std::vector<double> ms;  ///< per step, by pictures::EventStyle, idle last; sums of the samples
  };
  /// By the first step of the width, divided by it.
  [[nodiscard]] const std::map<std::int64_t, Entry>& entries() const { return entries_; }

  [[nodiscard]] Json json() const;
  /// Throws InputError at `file`.
  [[nodiscard]] static ShareHistory from(const Json& json, const std::string& file);

 private:
  std::int64_t width_ = 1;
  std::map<std::int64_t, Entry> entries_;
};

/// Of all ranks, for a page: {"steps": the last of each entry, "window_ms", "ms": [entry][rank][style]}, of the entries
/// that all ranks have, `most` rows at most. Null where a rank has none. Where a rank's file is damaged, its times are 0
/// and `left_out` says so. Throws nothing.
[[nodiscard]] Json shares_over_time(const RunPaths& paths, int world, std::size_t most,
                                    std::vector<std::string>& left_out);

}  // namespace stagecraft
