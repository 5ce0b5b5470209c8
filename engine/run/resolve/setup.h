#pragma once

// Everything about a run that is settled before its first step and the same on every rank.

#include "engine/config/config.h"
#include "engine/run/resolve/programs.h"
#include "engine/run/resolve/training_inputs.h"
#include "partitioner/plan/plan.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace stagecraft {

/// Where a run begins: at 0, or behind a checkpoint.
struct StartPoint {
  std::int64_t step = 0;         ///< steps made already
  bool validation_owed = false;  ///< and the validation due after them was not
  std::string checkpoint;        ///< folder; "" for a fresh start
};
template <class V>
void describe(V& v, StartPoint& s) {
  v.required("step", s.step, "steps made already");
  v.required("validation_owed", s.validation_owed, "the validation due after them was not made");
  v.required("checkpoint", s.checkpoint, "folder; empty for a fresh start");
}

/// Read-only once made; ranks that are threads share one. Not movable: programs and layers are referred to.
class RunSetup {
 public:
  /// `config` is completed: every inferred value is put in, so that `config()` is the effective one, and
  /// reads back as a config that does the same; its threads_per_rank is known already. Proves all programs.
  /// Throws InputError, RefusedError.
  RunSetup(RunConfig config, const std::string& file, TrainingInputs materials, Plan plan, StartPoint start);
  RunSetup(const RunSetup&) = delete;
  RunSetup& operator=(const RunSetup&) = delete;

  [[nodiscard]] const RunConfig& config() const { return config_; }
  [[nodiscard]] const TrainingInputs& materials() const { return materials_; }
  [[nodiscard]] const Plan& plan() const { return plan_; }
  [[nodiscard]] const Placement& placement() const { return placement_; }
  [[nodiscard]] const std::vector<std::pair<int, int>>& layers_of_stages() const { return stage_layers_; }
  [[nodiscard]] const RunShape& shape() const { return shape_; }
  [[nodiscard]] const RunPrograms& programs() const { return *programs_; }
  [[nodiscard]] const StartPoint& start() const { return start_; }
  /// The checkpoint it starts from is the run's end.
  [[nodiscard]] bool over() const { return start_.step >= shape_.steps && !start_.validation_owed; }
  [[nodiscard]] bool synchronous() const { return shape_.synchronous; }
  [[nodiscard]] int world() const { return placement_.world(); }
  /// The rank that hears of losses first, and so prints and writes metrics: the one of stage 0.
  [[nodiscard]] Rank reporter() const { return placement_.ranks.front().front(); }
  /// "rank 1: stage 1", "rank 0: stages 0, 2"
  [[nodiscard]] std::string rank_name(Rank rank) const;

  /// Of the binary, config, plan and data: what ranks compare before they start.
  [[nodiscard]] std::string fingerprint() const;

 private:
  RunConfig config_;
  TrainingInputs materials_;
  Plan plan_;
  Placement placement_;
  std::vector<std::pair<int, int>> stage_layers_;
  StartPoint start_;
  RunShape shape_;
  std::unique_ptr<RunPrograms> programs_;
};

}  // namespace stagecraft
