#pragma once

// What a picture shows: a run of one program, simulated or measured, with the memory of its ranks where that
// is known. svg.h and text.h draw it.

#include "schedules/costs/costs.h"
#include "schedules/program/program.h"
#include "schedules/program/timeline.h"

#include <optional>
#include <string>
#include <vector>

namespace stagecraft {

/// The bytes one rank holds over time.
struct MemoryCurve {
  /// `held` from `at` until the next point; of several at one moment all but the last are held for an
  /// instant.
  struct Point {
    Seconds at;
    Bytes held;
    bool operator==(const Point&) const = default;
  };
  Bytes fixed;                ///< held all the time
  std::vector<Point> points;  ///< by time

  [[nodiscard]] Bytes peak() const;
  [[nodiscard]] Seconds peak_at() const;  ///< the first time the peak is reached
};

/// One curve per rank: held_bytes (schedules/checker/held_bytes.h) at the times of `timeline`, which must be
/// a simulation of `program`. Its peaks are those of the checker's proof.
[[nodiscard]] std::vector<MemoryCurve> memory_curves(const LoweredProgram& program, const CostTable& costs,
                                                     const Timeline& timeline);

struct Panel {
  Timeline timeline;
  std::vector<MemoryCurve> memory{};   ///< by rank; empty: not drawn
  std::optional<Bytes> capacity{};     ///< of every rank
  std::vector<std::string> figures{};  ///< shown under the title: "makespan 36.5 ms"
};

/// Leaves what happens between two moments, for a closer look; times stay as they are.
void cut(Panel& panel, Seconds from, Seconds until);

}  // namespace stagecraft
