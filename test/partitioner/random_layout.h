#pragma once

// Small planning problems for properties: a chain of layers, a cluster of levels, a schedule and a layout of
// it. Call within a property.

#include "partitioner/plan/cluster.h"
#include "partitioner/plan/profile.h"
#include "partitioner/search/layout.h"
#include "schedules/generators/schedule.h"
#include "test/partitioner/random_profile.h"

#include <rapidcheck.h>

#include <functional>
#include <vector>

namespace stagecraft::test {

/// Two levels of up to 2 x 4 devices, links shared or not, speeds or not. Transfers cost as much as layers
/// do, or little.
[[nodiscard]] inline Cluster random_cluster() {
  Cluster cluster;
  const double bandwidth = *rc::gen::element(4.0, 16.0, 256.0);
  const auto level = [&](int count, double slower) {
    NetworkLevel made{count, Link{Seconds{*rc::gen::inRange(0, 3) / 4.0}, bandwidth / slower}};
    made.shared_by = *rc::gen::element(SharedBy::pair, SharedBy::child);
    return made;
  };
  cluster.levels = {level(*rc::gen::inRange(2, 5), 1), level(2, 4)};
  if (*rc::gen::inRange(0, 3) == 0) {
    for (int d = 0; d < cluster.devices(); ++d) cluster.speed.push_back(*rc::gen::element(0.5, 1.0, 2.0));
  }
  return cluster;
}

/// Of up to `devices` devices and `layers` stages, replicated or not.
[[nodiscard]] inline planning::Layout random_layout(const Schedule& schedule, int devices, int layers) {
  std::vector<planning::Layout> all;
  const int stages_per_rank = schedule.virtual_stages;
  for (int positions = 1; positions <= devices && positions * stages_per_rank <= layers; ++positions) {
    if (positions == 1 && stages_per_rank > 1) continue;
    all.push_back(planning::straight_layout(schedule.placement, stages_per_rank, positions));
  }
  const planning::Layouts more = planning::replicated_layouts(
      schedule.placement, stages_per_rank, {.devices = devices, .most_stages = std::min(layers, 4)});
  all.insert(all.end(), more.list.begin(), more.list.end());
  return *rc::gen::elementOf(all);
}

}  // namespace stagecraft::test
