#pragma once

// One stage on one rank: its layers' weights in all versions that are alive, buffers, gradients, optimizer
// state, and what forwards keep for their backwards. It carries out single actions and knows no program.
//
// Threads: belongs to the worker's thread, which has autograd off (c10::InferenceMode).

#include "engine/core/in_flight.h"
#include "engine/core/stage_graphs.h"
#include "engine/core/versions.h"
#include "engine/optimizers/model_optimizer.h"
#include "models/layers/gradient_accumulator.h"
#include "models/losses/loss.h"
#include "models/model.h"
#include "schedules/program/action.h"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

namespace stagecraft {

/// What a forward is told, besides its input.
struct ForwardTask {
  MicroBatch micro_batch{};
  Version version{};
  Mode mode = Mode::train;
  RandomKey key{};        ///< the layer is filled in by the stage
  FieldTensors fields{};  ///< of the batch, that the stage's layers and its loss read
  /// The stage's input is all that is kept: a recompute() will follow.
  bool recomputed_later = false;
};

/// Called after each layer's weight backward, last layer first; `layer` is its index in the whole model.
using AfterLayer = std::function<void(int layer)>;

class Stage {
 public:
  /// Layers [first, last) of `model`, at their initial weights, on `device`, where all tensors that come in
  /// must lie too. `between_layers` is called after each layer's forward and backward. `graphs`: to record
  /// what repeats; null: nothing is recorded.
  Stage(const Model& model, const Loss& loss, StageId id, int first, int last, std::uint64_t seed,
        at::Device device, std::function<void()> between_layers,
        const std::shared_ptr<DeviceGraphs>& graphs = nullptr);

  [[nodiscard]] StageId id() const { return id_; }
  [[nodiscard]] int first_layer() const { return first_; }
  /// None of its layers has a backward: none has a trained weight, and no layer before them has (Model::gradient_from).
  [[nodiscard]] bool frozen() const { return frozen_layers_ == layers_.size(); }
  [[nodiscard]] int last_layer() const { return first_ + static_cast<int>(layers_.size()); }

  /// Starts a segment, in which versions are read so. What the proof of one without steps, a validation, does
  /// not count (gradients and old versions) gives its memory back, unless recordings know its addresses. A
  /// validation reads the averaged weights where there are any.
  void begin(const VersionReads& reads);

  /// The stage's output, contiguous. A frozen stage keeps nothing, and no other call follows. Of one tensor: sharing no memory with `input`; a bundle of several shares
  /// it, until it is packed.
  [[nodiscard]] Bundle forward(Bundle input, ForwardTask task);
  /// The last stage's: forward, then the loss of the output, which nobody else needs.
  [[nodiscard]] LossValue forward_loss(Bundle input, ForwardTask task, LossTask loss);
  /// Forward again from the kept input, keeping what backward needs. Changes no buffer.
  void recompute(ForwardTask task);

  /// Gradients of the stage's input: contiguous, sharing memory with `gradients` as the output does with the
  /// input, none for the model's first stage. `gradients` are those of the output; none for the last stage,
  /// which starts at its loss.
  [[nodiscard]] Bundle backward_input(MicroBatch micro_batch, Version version, Bundle gradients);
  void backward_weight(MicroBatch micro_batch, Group group, const AfterLayer& added = nullptr);
  /// Both halves, layer by layer.
  [[nodiscard]] Bundle backward(MicroBatch micro_batch, Version version, Group group, Bundle gradients,
                                const AfterLayer& added = nullptr);

  /// Zeros where nothing is recorded.
  [[nodiscard]] GraphCounts graph_counts() const { return graphs_ ? graphs_->counts() : GraphCounts{}; }

  /// The sums of accumulation `group`, of one layer (counted in the whole model).
  [[nodiscard]] const Tensors& gradients(Group group, int layer);
  /// Marks the gradients of `group` as summed over replicas: from here on every parameter counts as having
  /// one, because another replica may have contributed to it.
  void summed(Group group);
  /// Likewise of one parameter, which layers share.
  void summed(Group group, int layer, int parameter);
  /// Updates from `group`, which is over then. Writes version `from` + 1; `at` is the position in the list.
  void step(Group group, Version from, std::size_t at, const ModelOptimizer& optimizer,
            const UpdateMoment& moment);
  /// The same without an update: version `from` + 1 has the values of `from`.
  void skip_step(Group group, Version from, std::size_t at);
  /// Of this worker's: in all, and since the last step that was none.
  [[nodiscard]] std::int64_t skipped_steps() const { return skipped_steps_; }
  [[nodiscard]] int skips_in_a_row() const { return skips_in_a_row_; }
  /// What the loss is multiplied by in backwards, so that gradients of few bits do not vanish. Sums are not
  /// divided by it again: that is the caller's.
  /// Between micro-batches: forward and backward of one have the same.
  void scale_loss(double scale);

  /// Micro-batches under way and groups' sums are dropped, and skipped steps counted anew: what a rehearsal left.
  void forget_work();

  // What a checkpoint holds of one layer, by its number in the whole model.
  [[nodiscard]] const Tensors& parameters(int layer) const { return versions_.newest()[local(layer)]; }
  /// Of the same shapes.
  void set_parameters(int layer, const Tensors& values);
  [[nodiscard]] Tensors& buffers(int layer) { return buffers_[local(layer)]; }
  /// Those with that rule.
  [[nodiscard]] Tensors buffers(int layer, OverReplicas rule) const;
  [[nodiscard]] OptimizerState& optimizer_state(int layer) { return optimizer_[local(layer)]; }

 private:
  struct MicroBatchWork {
    InFlight kept;
    StageGraphs::Pass* pass = nullptr;  ///< null: not recorded
  };
  using Accumulators = std::vector<GradientAccumulator>;

  [[nodiscard]] std::size_t local(int layer) const { return static_cast<std::size_t>(layer - first_); }
  [[nodiscard]] Bundle run_layers(Bundle boundary, const ForwardTask& task, bool commit_buffers,
                                  std::vector<Kept>* kept);
  [[nodiscard]] MicroBatchWork& in_flight(MicroBatch micro_batch);
  /// Makes the micro-batch's work; `task` is told where its name lies on the device. `share`: where its loss
  /// follows.
  [[nodiscard]] MicroBatchWork& begin(ForwardTask& task, const Bundle& input, std::optional<double> share);
  void end(MicroBatch micro_batch);
  void after_layer() const {
    if (!of_a_pass_) between_layers_();
  }
  /// A part of a micro-batch's work, `sums` being what it adds to: of its pass, where it has one.
  template <class Part>
  [[nodiscard]] Tensors run(MicroBatchWork& work, StageGraphs::PartKind kind, Tensors inputs,
                            Accumulators* sums, const Part& part);
  [[nodiscard]] Bundle run_backward(InFlight& work, Version version, Bundle gradients,
                                    Accumulators* accumulators, const AfterLayer& added);
  /// `weights`: as LossData has them.
  [[nodiscard]] LossValue loss_of(const at::Tensor& output, const FieldTensors& fields, const LossTask& task,
                                  const at::Tensor& weights, Kept* kept, bool count_correct) const;
  void read_average(bool validates);
  [[nodiscard]] Accumulators& accumulators(Group group);
  void end_group(Group group);

  const Loss& loss_;
  StageId id_;
  int first_;
  std::vector<LayerPtr> layers_;
  std::vector<bool> has_parameters_;
  std::size_t frozen_layers_ = 0;  ///< of the first ones, those without a backward
  bool begins_before_ = false;  ///< a layer before the stage has a trained weight: its input has a gradient
  std::vector<BoundarySpec>
      between_;  ///< for one sample: before the first layer, between them, behind the last
  std::function<void()> between_layers_;
  MatrixProducts products_;
  std::unique_ptr<StageGraphs> graphs_;  ///< null: nothing is recorded
  bool of_a_pass_ = false;               ///< a part that may be recorded runs

  double loss_scale_ = 1;
  std::int64_t skipped_steps_ = 0;
  int skips_in_a_row_ = 0;
  Versions versions_;
  /// What forwards read in validation in place of a version; empty: the version.
  StageParameters averaged_;
  bool publishes_average_ = false;  ///< mixed precision: the newest version's copies hold the average
  std::vector<Tensors> buffers_;
  std::vector<OptimizerState> optimizer_;
  using Works = std::unordered_map<MicroBatch, MicroBatchWork>;
  Works in_flight_;
  std::vector<Works::node_type>
      spare_works_;  ///< of micro-batches that are over: what they kept it in, empty
  std::map<Group, Accumulators> accumulators_;
  std::vector<Accumulators> spare_;  ///< of finished groups: their memory stays
};

}  // namespace stagecraft
