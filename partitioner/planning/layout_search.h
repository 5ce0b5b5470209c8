#pragma once

// The search over layouts by simulated step: best first by what no layout can be below. Whatever cannot beat
// the best plan so far is left alone.

#include "stagecraft/partitioner/planning/layout.h"
#include "stagecraft/partitioner/planning/planning_run.h"

#include <vector>

namespace stagecraft::planning {

class LayoutSearch {
 public:
  /// Keeps a reference to `run`, whose candidates seed the search.
  explicit LayoutSearch(PlanningRun& run) : run_(run) {}

  /// Goes over the layouts with one device a stage and the wide ones. Candidates go to the run; the proof is
  /// there where cuts were searched for and something fits.
  [[nodiscard]] std::optional<StepProof> search(const std::vector<Layout>& plain, const Layouts& wide);

 private:
  /// A layout whose cuts may be worth a search.
  struct Task {
    Layout layout;
    double bound = 0;
    std::vector<std::vector<int>> seeds{};
  };

  [[nodiscard]] Task task_of(const Layout& layout) const;
  [[nodiscard]] std::vector<Task> tasks_of(const std::vector<Layout>& plain, const Layouts& wide) const;
  [[nodiscard]] double first_bound(const Layout& layout) const;
  /// Of the best plan's layout, if a cap costs it time.
  void price_without_cap(const std::vector<Task>& tasks, StepProof& proof) const;

  PlanningRun& run_;
};

}  // namespace stagecraft::planning
