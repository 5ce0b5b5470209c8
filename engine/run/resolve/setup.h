#pragma once

// Everything about a run that is settled before its first step and the same on every rank.

#include "engine/run/resolve/programs.h"
#include "engine/run/resolve/resolve.h"
#include "engine/run/resolve/training_inputs.h"
#include "engine/transport/nccl/wiring.h"

#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace stagecraft {

/// Read-only once made; ranks that are threads share one. Not movable: programs and layers are referred to.
class RunSetup {
 public:
  /// Proves all programs, and keeps those of the rank that this process is (`own`), or, where ranks are
  /// threads, of all (none). Throws RefusedError.
  RunSetup(ResolvedRun run, TrainingInputs inputs, std::optional<Rank> own = std::nullopt);
  RunSetup(const RunSetup&) = delete;
  RunSetup& operator=(const RunSetup&) = delete;

  [[nodiscard]] const ResolvedRun& run() const { return run_; }
  [[nodiscard]] const RunConfig& config() const { return run_.config; }
  [[nodiscard]] const TrainingInputs& inputs() const { return inputs_; }
  [[nodiscard]] const Plan& plan() const { return run_.plan; }
  [[nodiscard]] const Placement& placement() const { return placement_; }
  [[nodiscard]] const std::vector<std::pair<int, int>>& layers_of_stages() const { return stage_layers_; }
  [[nodiscard]] const RunShape& shape() const { return shape_; }
  [[nodiscard]] const RunPrograms& programs() const { return *programs_; }
  /// Proves one more shape of segment (RunPrograms::add), while no rank looks. Throws RefusedError, also where NCCL
  /// was wired for the shapes known before.
  void prove_also(const Segment& segment);
  /// What the programs need of NCCL, and the sum of norms where devices clip by them. Requires a run that
  /// may use it: on GPUs, with comms.backend "auto" or "nccl". Throws RefusedError where NCCL cannot carry
  /// them.
  [[nodiscard]] const transport::NcclWiring& nccl_wiring() const;
  [[nodiscard]] const StartPoint& start() const { return run_.start; }
  /// The checkpoint it starts from is the run's end.
  [[nodiscard]] bool over() const { return run_.start.step >= shape_.steps && !run_.start.validation_owed; }
  [[nodiscard]] bool synchronous() const { return shape_.synchronous; }
  [[nodiscard]] int world() const { return placement_.world(); }
  /// The rank that hears of losses first, and so prints and writes metrics: the one of stage 0.
  [[nodiscard]] Rank reporter() const { return placement_.ranks.front().front(); }
  /// "rank 1: stage 1", "rank 0: stages 0, 2"
  [[nodiscard]] std::string rank_name(Rank rank) const;

  /// Of the binary, config, plan and data: what ranks compare before they start.
  [[nodiscard]] std::string fingerprint() const;

 private:
  ResolvedRun run_;
  TrainingInputs inputs_;
  Placement placement_;
  std::vector<std::pair<int, int>> stage_layers_;
  RunShape shape_;
  std::optional<transport::NcclWiring> nccl_;  ///< of a run that may use it
  std::exception_ptr no_nccl_;                 ///< why NCCL cannot carry the programs; thrown where it should
  std::unique_ptr<RunPrograms> programs_;
};

}  // namespace stagecraft
