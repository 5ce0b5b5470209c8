#pragma once

// Carries out one rank's list of a lowered program, action by action, in the order it stands. One function an
// op and nothing about any schedule: what a schedule is lies in the list alone.

#include "engine/core/early_end.h"
#include "engine/core/rank_program.h"
#include "engine/core/run_state.h"
#include "engine/core/segment_losses.h"
#include "engine/core/unit_counter.h"
#include "models/data/sample_order.h"
#include "schedules/program/segments.h"

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

namespace stagecraft {

/// What an executor works on; all of it is the worker's and outlives it.
struct ExecutorContext {
  const StagedModel& model;
  std::vector<Stage>& stages;  ///< of this rank, ascending
  RunState& run;
  const BatchSources& data;  ///< of the segment's split, on the device
  const SampleOrder& order;  ///< of the same split
  const UnitCounter* units;  ///< of the same split; null: micro-batches weigh as many samples as they have
};

/// One segment's run on one rank. Whatever is known before the segment stands in its program (rank_program.h)
/// or passes from segment to segment (run_state.h), so that to make one costs a few vectors.
class Executor {
 public:
  /// The arguments outlive this. Throws InternalError where the program is another segment's, or the segment
  /// before left something behind.
  Executor(ExecutorContext context, const RankProgramPtr& program, const Segment& segment,
           const std::function<void(const StepReport&)>& report, const std::function<bool()>& asked);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  /// False where the segment was left early (Worker::run). Throws PeerError, NotFiniteError (Worker::run), and
  /// InternalError that names the action for what goes wrong inside one.
  [[nodiscard]] bool run();

 private:
  struct Loaded {
    std::int32_t stage;  ///< among the rank's
    MicroBatch micro_batch;
    Batch batch;
  };

  void carry_out(const Action& action);
  void load(const Action& action);
  void forward(const Action& action);
  void backward_input(const Action& action);
  void backward_weight(const Action& action);
  void backward(const Action& action);
  void step(const Action& action);
  void report_loss(const Action& action);
  void post_receive(const Action& action);

  [[nodiscard]] const ActionFacts& facts() const { return program_.of(at_); }
  /// Of the action's stage among the rank's. Throws InternalError where this rank does not hold it.
  [[nodiscard]] std::size_t place() const;
  [[nodiscard]] Stage& stage() const { return context_.stages[place()]; }
  [[nodiscard]] bool last() const { return program_.stages[place()].last; }
  [[nodiscard]] bool training() const { return program_.training(); }
  /// Whether the action at hand is of a micro-batch behind the end of a segment that is left.
  [[nodiscard]] bool left_out();
  /// Optimizer step of the run that the action belongs to.
  [[nodiscard]] std::int64_t step_of(std::size_t at) const;
  [[nodiscard]] ForwardTask forward_task(const Action& action) const;
  /// What the stage loaded for the forward; nothing where it loads nothing.
  [[nodiscard]] Batch take_loaded(const Action& action);
  [[nodiscard]] Bundle output_gradient(const Action& action);
  void hand_on(const Action& action, const Bundle& input_gradient);
  /// What the backward at hand begins layer by layer beside its own work; null: nothing.
  [[nodiscard]] AfterLayer after_layer();
  /// The learning rate of a step of the run.
  [[nodiscard]] double rate_of(std::int64_t step) const;
  [[nodiscard]] StepReport report_of(Group group) const;
  /// With the place of the action at hand.
  [[noreturn]] void fail_here(const std::exception_ptr& error) const;

  ExecutorContext context_;
  RunState& run_;
  const RankProgram& program_;
  const Segment& segment_;
  const std::function<void(const StepReport&)>& report_;
  std::optional<EarlyEnd> early_end_;                        ///< of a segment that may be left
  std::optional<std::pair<StepReport, at::Tensor>> result_;  ///< of such a segment
  std::size_t at_ = 0;                                       ///< position in the list
  SegmentLosses losses_;
  std::vector<Loaded> loaded_;  ///< and not taken yet: a few
};

}  // namespace stagecraft
