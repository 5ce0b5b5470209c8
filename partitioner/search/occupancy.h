#pragma once

// How long a micro-batch keeps stages and boundaries busy once the pipeline is full: what the largest of is
// the steady-state bottleneck (PipeDream, SOSP'19, 3.1), with replicas and levels.
//
// A stage of w replicas takes its compute on its slowest device over w, since micro-batches go round-robin,
// and of each step its all-reduce shared out over the step's micro-batches. A boundary between w and w'
// replicas is crossed by every pair in turn: a pair's link, or a link that several pairs share, carries its
// part of each w w' micro-batches (the activation one way, the gradient, as large, the other way).

#include "schedules/costs/costs.h"

#include <vector>

namespace stagecraft::planning {

/// Seconds of a boundary per micro-batch: the largest over its links, shared or not, of latency + bytes per second.
class BoundaryOccupancy {
 public:
  BoundaryOccupancy(const Network& network, const std::vector<Rank>& from, const std::vector<Rank>& to);
  [[nodiscard]] double seconds(Bytes bytes) const;

 private:
  struct Part {
    double latency, seconds_per_byte;
  };
  std::vector<Part> parts_;  // none where all is handed over on a rank
};

/// Speed of a stage: of its slowest replica, times their number.
[[nodiscard]] double stage_speed(const std::vector<Rank>& replicas, const std::vector<double>& speed);

}  // namespace stagecraft::planning
