#pragma once

// Where the moments of the memory contract (schedules/memory/held.h) are in a rank's list.

#include "schedules/checker/program_index.h"
#include "schedules/memory/held.h"

#include <array>
#include <cstdint>

namespace stagecraft::checker {

/// Of one micro-batch on one stage.
struct MicroBatchMoments {
  Situation here;
  std::array<std::int32_t, kMoments> ends{};  ///< in the list; no row of the situation names the others

  [[nodiscard]] std::int32_t operator[](Moment moment) const {
    return ends[static_cast<std::size_t>(moment)];
  }
};

/// Requires a program that passed the proofs.
[[nodiscard]] MicroBatchMoments moments_of(const ProgramIndex& index, StageId stage, MicroBatch mb);

/// Where the stage is done with a micro-batch.
[[nodiscard]] std::int32_t last_use(const ProgramIndex& index, StageId stage, MicroBatch mb);

/// Moments of an action: changes take effect when it begins, before its peak is taken, and when it ends.
[[nodiscard]] constexpr std::int64_t begin_of(std::int32_t at) { return std::int64_t{2} * at; }
[[nodiscard]] constexpr std::int64_t end_of(std::int32_t at) { return begin_of(at) + 1; }

}  // namespace stagecraft::checker
