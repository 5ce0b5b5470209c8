#pragma once

// The weight versions of one stage, as values: each version that somebody still reads has tensors of its own
// (weight stashing, PipeDream, SOSP'19, section 3.3). A step updates in place when nobody will read its
// source version again, and into a copy otherwise. Which of the two follows from the program, before it runs.
//
// In mixed precision a version is what layers read, and the parameters that steps update, at full precision,
// are apart: once, since nobody reads old ones.

#include "engine/core/version_reads.h"
#include "models/layers/layer.h"
#include "schedules/program/action.h"

#include <cstddef>
#include <vector>

namespace stagecraft {

/// Parameters by layer of the stage.
using StageParameters = std::vector<Tensors>;

class Versions {
 public:
  /// `current` becomes version 0. In mixed precision `copies` of it are what layers read; else it is empty.
  explicit Versions(StageParameters current, StageParameters copies = {});

  /// Starts a segment: the newest version becomes version 0, and `reads` tells how long versions are read in
  /// it. Forgets all older versions; keeps their memory if the segment steps the stage, or with `keeps`.
  void begin(const VersionReads& reads, bool keeps = false);

  /// Throws InternalError for a version that is not there (any more).
  [[nodiscard]] const StageParameters& read(Version version) const;
  /// The newest version, at full precision.
  [[nodiscard]] const StageParameters& newest() const { return full_.empty() ? read(newest_) : full_; }

  /// The tensors of version `from` + 1 at full precision, holding the values of `from`, to be updated in
  /// place. publish() must follow. `at` is the step's position in the list. `from` must be the newest
  /// version.
  [[nodiscard]] const StageParameters& advance(Version from, std::size_t at);
  /// Lets layers read what newest() holds: one of them, or all.
  void publish(std::size_t layer);
  void publish();
  /// Mixed precision: lets layers read `others`, rounded, in place of what newest() holds, until the next
  /// publish(). Else does nothing, and returns false.
  bool publish(const StageParameters& others);

  /// Versions that have memory: the most that were ever alive at once.
  [[nodiscard]] std::size_t held() const { return ring_.size(); }

 private:
  struct Entry {
    Version version;  ///< none: free
    StageParameters parameters;
  };
  [[nodiscard]] bool read_after(Version version, std::size_t at) const;
  [[nodiscard]] bool mixed() const { return !full_.empty(); }
  [[nodiscard]] std::size_t find(Version version) const;
  /// An entry that nobody will read after `at`, made if there is none.
  [[nodiscard]] std::size_t free_entry(std::size_t at);

  StageParameters full_;  ///< of the newest version, in mixed precision
  std::vector<Entry> ring_;
  Version newest_{0};
  std::vector<std::size_t> reads_end_;  ///< of the segment's VersionReads
};

}  // namespace stagecraft
