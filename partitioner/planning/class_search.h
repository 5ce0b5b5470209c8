#pragma once

// The search over equally wide layouts, one stage a device, where there are too many to look at each: by
// classes. A class is a number of stages and of micro-batches on the busiest replica, with every width that
// comes to the same and every block. Best first by what is known of each:
//   1. of a class, what any order takes at least (equal_stages.h);
//   2. what the schedule's order takes;
//   3. of each of its layouts, with the links and all-reduces of where it lies; the cuts that come out are
//      simulated, by one of the layout's pipelines (replica_part.h);
//   4. the search over its cuts (cut_search.h), a longer one each time round.
// Whatever is not below the best step is done with. What remains when time is up bounds the best from below.

#include "stagecraft/partitioner/planning/equal_stages.h"
#include "stagecraft/partitioner/planning/layout.h"
#include "stagecraft/partitioner/planning/planning_run.h"

#include <limits>
#include <memory>
#include <optional>
#include <vector>

namespace stagecraft::planning {

class ClassSearch {
 public:
  /// Keeps a reference to `run`.
  explicit ClassSearch(PlanningRun& run);

  /// The best plans go to the run.
  [[nodiscard]] StepProof search();

 private:
  /// A class with what is known of its schedule's order, or one layout of it.
  struct Order {
    std::vector<StageOrder> stages;
    std::vector<StageCounts> stage_counts;
  };
  struct Open {
    double bound;
    int stages, width, widest;
    int effort = 0;
    std::optional<Layout> layout{};
    std::shared_ptr<const Order> order{};
    std::vector<int> cuts{};
    [[nodiscard]] double key() const;
  };
  struct Found {
    Layout layout;
    std::vector<int> cuts;
    RecomputeSettings settings;
    double seconds;
  };

  void open_classes();
  void push(Open open);
  [[nodiscard]] bool stops() const;
  [[nodiscard]] double best() const { return found_.empty() ? run_.best() : found_.back().seconds; }
  void raise(Open open);
  void raise_by_order(Open open);
  void open_layouts(const Open& open);
  void raise_layout(Open open);
  void search_cuts(Open open);
  /// What layers may be a stage, by what they need in any case.
  [[nodiscard]] EqualStages::Fits fits(std::vector<StageCounts> stage_counts) const;
  void keep_best();

  PlanningRun& run_;
  EqualStages stages_;
  Recompute least_memory_;
  std::vector<double> fixed_, kept_;  // bytes of the layers before, on a device and of each in flight
  std::vector<Open> open_;            // a heap
  std::vector<Found> found_;          // each better than the one before
  StepProof proof_{.bound = Seconds{std::numeric_limits<double>::infinity()}, .whole_family = false};
};

}  // namespace stagecraft::planning
