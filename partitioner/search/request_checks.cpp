#include "partitioner/search/request_checks.h"

#include "base/text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace stagecraft::planning {
namespace {

void check_stage_count(const RequestScope& scope, int stages, int stages_per_rank) {
  if (stages < 1) throw InputError(fmt::format("{}: expected at least 1", plural(stages, "stage")));
  if (stages > scope.cuttable) {
    throw InputError(fmt::format("{}, but the model has {}; a stage needs at least one",
                                 plural(stages, "stage"), plural(scope.cuttable, "layer")));
  }
  if (stages % stages_per_rank != 0) {
    throw InputError(fmt::format("{} {} no multiple of the {} per rank that {} is to have",
                                 plural(stages, "stage"), stages == 1 ? "is" : "are", stages_per_rank,
                                 scope.schedule.name));
  }
  const Cluster& cluster = scope.cluster;
  if (stages / stages_per_rank > cluster.devices()) {
    throw InputError(fmt::format(
        "{}, but the cluster{} has {}; {}", plural(stages, "stage"),
        cluster.name.empty() ? "" : " " + cluster.name, plural(cluster.devices(), "device"),
        stages_per_rank == 1 ? "a stage needs one of its own"
                             : fmt::format("{} share one with {}", stages_per_rank, scope.schedule.name)));
  }
}

void check_cuts(const RequestScope& scope) {
  const std::vector<int>& cuts = scope.request.cuts;
  int before = 0;
  for (const int cut : cuts) {
    if (cut <= before || cut >= scope.cuttable) {
      throw InputError(fmt::format(
          "cuts {}: {} is out of place; cuts are the first layers of stages 1, 2, ..., ascending, "
          "between 1 and {} (the model's layers are 0 to {})",
          fmt::join(cuts, ","), cut, scope.cuttable - 1, scope.cuttable - 1));
    }
    before = cut;
  }
}

void check_widths(const RequestScope& scope, int stages_per_rank) {
  const std::vector<int>& widths = scope.request.widths;
  const std::string said = fmt::format("widths {}", fmt::join(widths, ","));
  std::int64_t devices = 0;
  for (const int replicas : widths) {
    if (replicas < 1)
      throw InputError(fmt::format("{}: a stage has at least one replica, not {}", said, replicas));
    devices += replicas;
  }
  if (devices > scope.cluster.devices()) {
    throw InputError(fmt::format("{} need {}, but the cluster has {}", said, plural(devices, "device"),
                                 scope.cluster.devices()));
  }
  if (stages_per_rank > 1 && std::ranges::adjacent_find(widths, std::not_equal_to{}) != widths.end()) {
    throw InputError(fmt::format("{}: with several stages per rank all are equally wide", said));
  }
}

}  // namespace

void check_request(const RequestScope& scope, PlacementKind kind, int stages_per_rank) {
  const PlanRequest& request = scope.request;
  if (request.micro_batches < 1 || request.micro_batches > kMostMicroBatches) {
    throw InputError(
        fmt::format("a step has 1 to {} micro-batches, not {}", kMostMicroBatches, request.micro_batches));
  }
  scope.schedule.check(schedule_request(request.schedule,
                                        scope.schedule.searched
                                            ? straight_layout(kind, stages_per_rank, 1).placement()
                                            : scope.schedule.place(1, stages_per_rank),
                                        {request.micro_batches}, {}));
  const auto agree = [&](int stages, const std::string& what) {
    if (request.stages && *request.stages != stages) {
      throw InputError(fmt::format("{} make {}, but {} asked for", what, plural(stages, "stage"),
                                   *request.stages == 1 ? "1 is" : fmt::format("{} are", *request.stages)));
    }
  };
  if (!request.cuts.empty()) {
    const int stages = static_cast<int>(request.cuts.size()) + 1;
    agree(stages, fmt::format("the cuts {}", fmt::join(request.cuts, ",")));
    check_cuts(scope);
    check_stage_count(scope, stages, stages_per_rank);
  }
  if (!request.widths.empty()) {
    const int stages = static_cast<int>(request.widths.size()) * stages_per_rank;
    const std::string said = fmt::format("the widths {}", fmt::join(request.widths, ","));
    agree(stages, said);
    if (!request.cuts.empty() && static_cast<int>(request.cuts.size()) + 1 != stages) {
      throw InputError(fmt::format("{} make {}, but the cuts {} make {}", said, plural(stages, "stage"),
                                   fmt::join(request.cuts, ","), request.cuts.size() + 1));
    }
    check_stage_count(scope, stages, stages_per_rank);
    check_widths(scope, stages_per_rank);
  }
  if (request.stages) check_stage_count(scope, *request.stages, stages_per_rank);
}

std::vector<int> stage_counts(const RequestScope& scope, int stages_per_rank) {
  const PlanRequest& request = scope.request;
  if (!request.cuts.empty()) return {static_cast<int>(request.cuts.size()) + 1};
  if (!request.widths.empty()) return {static_cast<int>(request.widths.size()) * stages_per_rank};
  if (request.stages) return {*request.stages};
  std::vector<int> counts;
  for (int ranks = 1; ranks <= std::min(scope.cluster.devices(), scope.cuttable / stages_per_rank); ++ranks) {
    counts.push_back(ranks * stages_per_rank);
  }
  if (counts.empty()) check_stage_count(scope, stages_per_rank, stages_per_rank);
  return counts;
}

LayoutLimits layout_limits(const RequestScope& scope) {
  const PlanRequest& request = scope.request;
  LayoutLimits limits{.devices = scope.cluster.devices(), .most_stages = scope.cuttable};
  limits.stages = request.stages;
  if (!request.cuts.empty()) limits.stages = static_cast<int>(request.cuts.size()) + 1;
  limits.widths = request.widths;
  return limits;
}

Layouts wide_layouts(const RequestScope& scope, PlacementKind kind, int stages_per_rank) {
  if (!scope.request.replicate && scope.request.widths.empty()) return {};
  return replicated_layouts(kind, stages_per_rank, layout_limits(scope));
}

}  // namespace stagecraft::planning
