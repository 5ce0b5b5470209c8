#pragma once

// Carries out one rank's list of a lowered program, action by action, in the order it stands. One handler an
// op and nothing about any schedule: what a schedule is lies in the list alone.

#include "engine/core/boundaries.h"
#include "engine/core/deferred_norms.h"
#include "engine/core/deferred_reports.h"
#include "engine/core/early_end.h"
#include "engine/core/finite.h"
#include "engine/core/loss_sum.h"
#include "engine/core/recorder.h"
#include "engine/core/stage.h"
#include "engine/core/unit_counter.h"
#include "engine/core/worker.h"
#include "models/data/batch_source.h"
#include "models/data/sample_order.h"
#include "schedules/program/program.h"
#include "schedules/program/segments.h"
#include "schedules/rules/staleness.h"

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace stagecraft {

/// What the rank's stages load: apart even on one rank, so that each micro-batch's part is read when its
/// stage comes to it.
using BatchSources = std::map<StageId, std::unique_ptr<BatchSource>>;

/// Updates of a rank's stages in one segment, skipped ones among them.
struct UpdateCount {
  int begun = 0;
  int made = 0;
};

/// What an executor works on; all of it is the worker's and outlives it.
struct ExecutorContext {
  const Model& model;
  const std::vector<std::pair<int, int>>& stage_layers;
  const Loss& loss;
  const std::vector<int>& parameter_counts;  ///< parameter tensors of every stage of the model
  std::vector<Stage>& stages;                ///< of this rank, ascending
  Boundaries& boundaries;
  const BatchSources& data;  ///< of the segment's split, on the device
  const SampleOrder& order;  ///< of the same split
  const UnitCounter* units;  ///< of the same split; null: micro-batches weigh as many samples as they have
  Recorder& recorder;
  Transport& transport;
  const WorkerOptions& options;
  DeferredNorms& late_norms;
  DeferredReports& late_reports;
  DeferredFiniteChecks& deferred_checks;
  LossScale* loss_scale;  ///< null: the loss is not scaled
  UpdateCount& updates;
};

/// One segment's run on one rank.
class Executor {
 public:
  Executor(ExecutorContext context, const LoweredProgram& program, const Segment& segment,
           const std::function<void(const StepReport&)>& report, const std::function<bool()>& asked);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  /// False where the segment was left early (Worker::run). Throws PeerError, NotFiniteError (Worker::run), and
  /// InternalError that names the action for what goes wrong inside one.
  [[nodiscard]] bool run();

 private:
  using Handler = void (Executor::*)(const Action&);
  [[nodiscard]] static const std::array<Handler, 16>& handlers();

  /// Whether the action is of a micro-batch behind the end of a segment that is left.
  [[nodiscard]] bool left_out(const Action& action);

  void load(const Action& action);
  void forward(const Action& action);
  void backward_input(const Action& action);
  void backward_weight(const Action& action);
  void backward(const Action& action);
  void recompute(const Action& action);
  void reduce(const Action& action);
  void tie(const Action& action);
  void agree_norm(const Action& action);
  void step(const Action& action);
  void report_loss(const Action& action);
  void post_receive(const Action& action);
  void wait_receive(const Action& action) { context_.boundaries.wait_receive(action.tag); }
  void start_send(const Action& action) { context_.boundaries.start_send(action.tag); }
  void wait_send(const Action& action) { context_.boundaries.wait_send(action.tag); }
  void release(const Action& action) { context_.boundaries.release(action.slot); }

  /// What is known of a group before and while it runs.
  struct GroupState {
    int first_micro_batch = 0;
    int size = 0;                     ///< micro-batches
    std::vector<std::int64_t> units;  ///< of its micro-batches, once they were asked for
    std::int64_t samples = 0;
    std::int64_t tokens = 0;
    std::optional<LossSum> loss;  ///< of its micro-batches so far, on the last stage
    std::optional<double> norm;
    LateNorm late_norm{};  ///< set where it is heard in the next step only
    std::optional<double> loss_scale;
    bool agreed = false;   ///< the norm is known, on all ranks, or will be
    bool skipped = false;  ///< by all stages where it is, else by the model's first
    double learning_rate = 0;
  };

  [[nodiscard]] Rank me() const { return context_.transport.rank(); }
  [[nodiscard]] Stage& stage(StageId id);
  [[nodiscard]] bool last(StageId id) const;
  [[nodiscard]] bool training() const { return program_.kind == SegmentKind::train; }
  [[nodiscard]] GroupState& group_of(MicroBatch micro_batch);
  /// Optimizer step of the run that an action belongs to.
  [[nodiscard]] std::int64_t step_of(const Action& action) const;
  /// Of this rank's stages, all parameters'.
  [[nodiscard]] Tensors all_gradients(Group group);
  /// Of those that this rank brings to the norm: replicas have the same, and a tied weight counts where its owner
  /// is: others' are undefined.
  [[nodiscard]] Tensors counted_gradients(Group group);
  /// Whether the host may hear of the norm in the next step only: nothing is decided by it.
  [[nodiscard]] bool norm_may_be_late() const;
  /// The device applies the norm where that is asked for. `exchange`: the sum of all ranks' squares, made on the
  /// devices; null: the hosts exchange them when they hear.
  void launch_norm(const Action& action, const Tensors& counted, ReplicaSum* exchange);
  /// In the places of all parameters of the model, zeros elsewhere.
  [[nodiscard]] at::Tensor among_all(const at::Tensor& squares) const;
  /// Whether the step is left out, or ends the run, for gradients that are not finite.
  [[nodiscard]] bool skips(const Action& action);
  [[nodiscard]] ForwardTask forward_task(const Action& action);
  /// What the stage loaded for the forward; nothing where it loads nothing.
  [[nodiscard]] Batch take_loaded(const Action& action);
  /// Of the mini-batch, for a mean.
  [[nodiscard]] double share_of(MicroBatch micro_batch);
  /// Whether a validation has nothing that its mean could be of: no label counts.
  [[nodiscard]] bool has_no_unit(const GroupState& group) const;
  [[nodiscard]] BatchSize size_of(MicroBatch micro_batch) const;
  [[nodiscard]] Bundle output_gradient(const Action& action);
  void hand_on(const Action& action, const Bundle& input_gradient);
  /// `staging`: for a sum that is made of transfers.
  [[nodiscard]] std::unique_ptr<ReplicaSum> make_sum(const std::vector<Rank>& copies, const Tag& tag,
                                                     Bytes staging);
  /// Begins this rank's part of the sum of a group's gradients over the stage's replicas; what is returned
  /// hands in those of a layer, which come from the last to the first.
  [[nodiscard]] AfterLayer join_sum(StageId id, Group group);
  /// Begins this rank's part of the sum of a tied weight's gradients over all its copies, of which those on this
  /// rank are complete.
  void join_tie(TieId tie, Group group);
  /// Those that this rank joins with the backward that it is at.
  void join_ties(Group group);
  /// Whether the stage holds a weight that is summed by ties.
  [[nodiscard]] bool has_ties(StageId id) const;
  /// A layer's gradients that a reduce sums: all but those of tied weights.
  [[nodiscard]] Tensors reduced_gradients(Stage& stage, Group group, int layer);
  /// What is returned looks whether a layer's gradients are finite, while they are still in the cache.
  [[nodiscard]] AfterLayer look_at_layers(StageId id, Group group);
  /// One of the two where a backward is the last one into its group; otherwise nothing.
  [[nodiscard]] AfterLayer after_layer_at(const Action& action);

  ExecutorContext context_;
  const LoweredProgram& program_;
  const Segment& segment_;
  const std::function<void(const StepReport&)>& report_;
  std::optional<EarlyEnd> early_end_;                        ///< of a segment that may be left
  std::optional<std::pair<StepReport, at::Tensor>> result_;  ///< of such a segment
  const std::vector<Action>& list_;
  std::size_t at_ = 0;  ///< position in the list
  std::vector<Group> group_of_;
  std::vector<GroupState> groups_;
  std::map<StageId, std::vector<UpdateStaleness>> staleness_;  ///< of this rank's stages, by group
  std::set<std::pair<StageId, MicroBatch>> recomputed_;
  std::map<std::pair<StageId, MicroBatch>, Batch> loaded_;
  bool agrees_ = false;          ///< on norms
  std::set<std::size_t> joins_;  ///< positions of the backwards at which the rank joins a stage's sum
  std::multimap<std::size_t, TieId> tie_joins_;  ///< likewise those of tied weights
  std::set<std::size_t> looks_;  ///< positions of the backwards after which it looks for numbers not finite
  /// What it found: the last such tensor among the stage's; of the stage's latest group.
  std::map<StageId, std::optional<std::size_t>> not_finite_;
  /// Under way; a stage has one accumulation at a time.
  std::map<StageId, std::unique_ptr<ReplicaSum>> sums_;
  std::map<TieId, std::unique_ptr<ReplicaSum>> tie_sums_;
};

}  // namespace stagecraft
