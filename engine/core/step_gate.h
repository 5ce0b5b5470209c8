#pragma once

// The gate before a step: whether it is made, and with which gradients. Ranks agree on the norm of the
// gradient where their program has an agree_norm; then all stages make the step or none does. Elsewhere each
// stage looks at its own gradients just before its own step. Gradients that are not finite stop the run or
// skip the step (OnOverflow); those of a scaled loss are divided by the scale again, and long ones clipped,
// here and nowhere else.
//
// On the CPU the answer is there before the step. A device is asked and not waited for, unless the answer
// decides something: the run goes on for a step with weights that nothing saves, and hears then.

#include "engine/core/deferred_norms.h"
#include "engine/core/finite.h"
#include "engine/core/rank_program.h"
#include "engine/core/stage.h"
#include "engine/core/staged_model.h"
#include "engine/core/worker.h"
#include "engine/records/settings/loss_scale.h"
#include "engine/transport/transport.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace stagecraft {

/// What became of a group's step, for its report.
struct GateOutcome {
  bool agreed = false;  ///< the norm is known, the same on all ranks, or will be
  /// By all stages where the ranks agreed, else by the model's first.
  bool skipped = false;
  std::optional<double> norm;        ///< before clipping
  LateNorm late_norm{};              ///< set where the norm is heard in the next step only
  std::optional<double> loss_scale;  ///< that its loss had
};

class StepGate {
 public:
  /// `stages`: of this rank, ascending. `scale`: of float16, which the gate keeps from here on. All arguments
  /// outlive this.
  StepGate(const StagedModel& model, std::vector<Stage>& stages, Transport& transport,
           const WorkerOptions& options, std::optional<LossScale> scale);

  /// Starts a segment, and gives the stages the scale of their loss. Norms of earlier segments are heard
  /// where the reports of this one would come before them: collective. Throws as agree() does.
  void begin(const RankProgram& program);

  /// What is returned looks whether the gradients of a layer of the stage (its place among the rank's) are
  /// finite. For the group's last backward: skips() then need not read them again.
  [[nodiscard]] AfterLayer look_at_layers(std::size_t stage, Group group);

  /// Carries out Op::agree_norm; `step` is the run's. Collective. Throws NotFiniteError, on all ranks, and
  /// InputError of a loss scale that can be no lower; on a device that is not waited for, of an earlier step.
  void agree(Group group, std::int64_t step);

  /// Whether the step of a group is left out by that stage; asked right before the step. Throws
  /// NotFiniteError where such a step ends the run.
  [[nodiscard]] bool skips(std::size_t stage, Group group, std::int64_t step);
  /// Throws NotFiniteError if the step that `stage` just left out was the hundredth in a row. (A loss scale
  /// has a rule of its own.)
  void check_skips(const Stage& stage, std::int64_t step) const;

  [[nodiscard]] const GateOutcome& outcome(Group group) const { return outcomes_[group.index()]; }

  /// Waits for all answers of a device. Collective, as agree() is.
  void settle();

  /// Null: the loss is not scaled.
  [[nodiscard]] LossScale* loss_scale() { return scale_ ? &*scale_ : nullptr; }

 private:
  /// A look at a stage's gradients that skips() has not used yet.
  struct Look {
    bool made = false;
    std::optional<std::size_t> not_finite{};  ///< the last such tensor among the stage's
  };
  void progress() { transport_.progress(); }
  /// Of all this rank's stages and parameters.
  [[nodiscard]] Tensors all_gradients(Group group);
  /// Those that this rank brings to the norm: replicas have the same, and a tied weight counts where its
  /// owner is; others' are undefined.
  [[nodiscard]] Tensors counted_gradients(Group group);
  /// Whether the host may hear of the norm in the next step only: nothing is decided by it.
  [[nodiscard]] bool norm_may_be_late() const;
  /// The device applies the norm where that is asked for. `exchange`: the sum of all ranks' norms, made on
  /// the devices; null: the hosts exchange them when they hear.
  void launch_norm(Group group, std::int64_t step, const Tensors& counted, ReplicaSum* exchange);
  /// In the places of all parameters of the model, zeros elsewhere.
  [[nodiscard]] at::Tensor among_all(const at::Tensor& norms) const;

  const StagedModel& model_;
  std::vector<Stage>& stages_;
  Transport& transport_;
  const WorkerOptions& options_;
  std::optional<LossScale> scale_;
  DeferredNorms late_norms_;
  DeferredFiniteChecks late_checks_;
  const Placement* placement_ = nullptr;  ///< of the segment's program
  std::vector<GateOutcome> outcomes_;     ///< by group of the segment
  std::vector<Look> looks_;               ///< by stage of this rank
  at::Tensor norm_order_;  ///< of the model, on a device; undefined: norms are added as they lie
};

}  // namespace stagecraft
