#pragma once

// The family of placements that a planner searches: how many positions a pipeline has, how many stages each
// holds, how many replicas, and which devices they are. Optimality is claimed within this family.
//
// Devices are taken from 0 on, without gaps. Stages of different widths lie stage after stage, the replicas
// of one on consecutive devices (stage-major). Equally wide ones lie in blocks of k neighbouring positions,
// k a divisor of the positions: within a block replica after replica, each on k consecutive devices. So k
// stages come to lie on a machine of k devices: k = 1 is stage-major, all positions in one block are whole
// pipelines on consecutive devices (replica-major).

#include "schedules/generators/schedule.h"

#include <optional>
#include <string>
#include <vector>

namespace stagecraft::planning {

struct Layout {
  PlacementKind kind = PlacementKind::straight;
  int stages_per_rank = 1;
  std::vector<int> widths;  ///< per position; all the same where a rank holds several stages
  int block = 1;            ///< positions that lie together, where all are equally wide

  [[nodiscard]] int positions() const { return static_cast<int>(widths.size()); }
  [[nodiscard]] int stages() const { return positions() * stages_per_rank; }
  [[nodiscard]] int devices() const;
  [[nodiscard]] bool replicated() const { return devices() > positions(); }
  [[nodiscard]] Placement placement() const;
  /// "straight", "loop of 2 per rank", "3-1", "2 x 4, blocks of 2".
  [[nodiscard]] std::string name() const;

  bool operator==(const Layout&) const = default;
};

[[nodiscard]] Layout straight_layout(PlacementKind kind, int stages_per_rank, int positions);

/// What `replicated_layouts` may have.
struct LayoutLimits {
  int devices = 1;
  int most_stages = 1;
  std::optional<int> stages{};  ///< exactly so many
  std::vector<int> widths{};    ///< not empty: exactly these
  int most_layouts = 20'000;
};

struct Layouts {
  std::vector<Layout> list;
  bool all = true;  ///< the whole family; otherwise equally wide ones only, for there are too many
};

/// Whether there are no more than `most_layouts` ways to give positions their widths.
[[nodiscard]] bool few_widths(int stages_per_rank, const LayoutLimits& limits);

/// All layouts of that kind in which some stage has several replicas.
[[nodiscard]] Layouts replicated_layouts(PlacementKind kind, int stages_per_rank, const LayoutLimits& limits);

}  // namespace stagecraft::planning
