#pragma once

// One rank's part in a run: the layers of its stages, their weight versions, gradients and optimizer state,
// and the executor that carries out lowered programs on them. It knows no schedule; it does what the
// program's list says, in that order.

#include "engine/core/rank_program.h"
#include "engine/core/stage_graphs.h"
#include "engine/optimizers/model_optimizer.h"
#include "engine/records/settings/learning_rate.h"
#include "engine/records/settings/loss_scale.h"
#include "engine/records/settings/on_overflow.h"
#include "engine/transport/transport.h"
#include "models/data/dataset.h"
#include "models/losses/loss.h"
#include "models/model.h"
#include "schedules/program/program.h"
#include "schedules/program/segments.h"
#include "schedules/program/timeline.h"

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace stagecraft {

/// Everything a layer is in a checkpoint.
struct LayerState {
  Tensors parameters;
  Tensors buffers;
  OptimizerState optimizer;
};

struct WorkerOptions {
  ModelOptimizerPtr optimizer;  ///< set
  SchedulerConfig scheduler;
  std::int64_t total_steps = 0;
  /// Of a step, in place of what the scheduler says; null: that. On the worker's thread.
  std::function<double(std::int64_t step)> learning_rate = nullptr;
  double gradient_clipping = 0;  ///< 0: none
  Fp16Config fp16;               ///< enabled: the loss is scaled, for programs that agree on the norm
  OnOverflow on_overflow = OnOverflow::stop;  ///< of a gradient; float16 always skips
  std::uint64_t seed = 0;
  at::Device device = at::kCPU;  ///< that computes: weights and all that is made of them lie there
  /// Of the device, to record what repeats; null: nothing is.
  std::shared_ptr<DeviceGraphs> graphs = nullptr;
  std::int64_t micro_batch_size = 1;
  std::int64_t batch_size = 1;  ///< of a mini-batch
  bool shuffle = true;
  /// On the CPU: batches that take less time to read than a thread to wake are read when they are needed
  /// (LoaderOptions).
  bool short_reads_in_take = true;
  bool poison_released_slots = false;  ///< fill with NaN on release, so that a late reader shows
  int record_steps = 0;                ///< keep the events of the last so many steps; 0: none
  /// Called before each action of a segment. What it throws ends the segment there. On the worker's thread.
  std::function<void()> before_action = nullptr;
  /// Sees (and, in tests that plant errors, changes) the gradients of a layer just before its update, clipped
  /// already. On the worker's thread.
  std::function<void(std::int64_t step, int layer, const Tensors& gradients)> on_gradients = nullptr;
};

/// What rank 0 knows of a step when it is over.
struct StepReport {
  std::int64_t step = 0;
  double loss = 0;  ///< of the mini-batch, by the scaling rule
  /// Validation: right predictions. NaN, as the loss: no target counted, so there is no mean.
  double correct = 0;
  std::vector<double> terms{};  ///< of the mini-batch as the loss, in the order of Loss::terms
  /// Before clipping; absent where the program has no agree_norm, or the step was skipped.
  std::optional<double> gradient_norm;
  std::optional<double> loss_scale;  ///< float16: of this step
  /// The gradient was not finite and the weights stay: all, or, without an agreement, the first stage's.
  bool skipped = false;
  double learning_rate = 0;
  std::int64_t samples = 0;
  std::int64_t tokens = 0;  ///< of the samples, padding among them; 0: inputs are no tokens
};

/// Of a GPU.
struct CardMemory {
  Bytes reserved;     ///< most that LibTorch's allocator had of it for all ranks of this process
  Bytes used, total;  ///< of the card, by whatever runs there, now
};

class Worker {
 public:
  /// `stage_layers[s]` = [first, last) of stage s. Weights start at their initial values. The arguments must
  /// outlive the worker.
  Worker(const Model& model, const Loss& loss, const Dataset& data,
         const std::vector<std::pair<int, int>>& stage_layers, const Placement& placement,
         Transport& transport, WorkerOptions options);
  ~Worker();

  /// Queues the reads of `segment` behind those of segments named before. run() does so itself where it was
  /// not done; calling earlier hides the first reads.
  void read_ahead(const RankProgramPtr& program, const Segment& segment);

  /// Carries out one segment with this rank's part of its program (same group sizes; the caller has proved
  /// it). The worker holds on to the program until another one runs. `report` is
  /// called on stage 0's rank, once per group, as soon as the step is over there; on a device, which runs
  /// behind the host, when the next one is over or settle() is called. The program's version 0 is
  /// the weights as they are; afterwards its last version is.
  /// Throws NotFiniteError before a step whose gradient is not finite: on all ranks where they agree on its
  /// norm; else on one that holds such a stage. On a device that no one waits for, only when the answer has
  /// arrived: of a norm in the next step, and at the latest in settle(). Skipping, it throws for the
  /// hundredth such step in a row.
  ///
  /// `asked`: whether this rank was asked to leave the segment; all ranks give it, or none. When one was, all
  /// leave at the same micro-batch, a few behind those under way: no report, false. Only of validations: of
  /// training segments half a step would be left.
  bool run(const RankProgramPtr& program, const Segment& segment,
           const std::function<void(const StepReport&)>& report,
           const std::function<bool()>& asked = nullptr);

  /// A segment and its program, as for run().
  using Rehearsed = std::pair<RankProgramPtr, Segment>;
  /// On a device, where nothing was run or set yet: carries out each of `segments` twice, by this rank alone
  /// (transport/alone.h), and makes the initial state again. So what the device needs once is there before the first
  /// transfer: kernels are loaded, memory is in LibTorch's pool, what repeats is recorded. Returns "", or why it ended
  /// early, in words: made-up numbers may be such as a layer does not take. The run can begin all the same. Throws
  /// PeerError.
  [[nodiscard]] std::string rehearse(const std::vector<Rehearsed>& segments);

  /// Where a segment ended by an exception: the steps of the run whose state this rank holds as a whole. Those
  /// made before the segment, if no update of it was begun: then buffers and the loss scale are set back to what
  /// they were. Those made with it, if all its updates were made. Nothing in between, and nothing where a
  /// device, which may have failed, holds the weights.
  [[nodiscard]] std::optional<std::int64_t> whole_state();

  /// Reports all steps that were run, and waits for the device to have made them. Throws as run() does. All
  /// ranks call it between the same segments.
  void settle();

  /// The layers this rank holds.
  [[nodiscard]] std::vector<int> layers() const;
  /// In the CPU's memory, and there the tensors themselves.
  /// `brought`: what came with the model too (BufferSpec::brought); else it may be undefined.
  [[nodiscard]] LayerState state(int layer, bool brought = true) const;
  /// XXH3 of a buffer that came with the model, of its bytes; computed once.
  [[nodiscard]] std::string hash_of_brought(int layer, std::size_t buffer) const;
  /// From any device. A buffer that is undefined stays as it is. Throws InputError when shapes differ.
  void set_state(int layer, LayerState state);

  /// float16: the same on all ranks. Absent otherwise.
  [[nodiscard]] std::optional<LossScaleState> loss_scale() const;
  void set_loss_scale(const LossScaleState& state);

  /// A tensor of this rank's state that is not finite, in words: "exp_avg of weight in layer
  /// block3.attention (stage 1)"; empty where all are. Reads every tensor once.
  [[nodiscard]] std::string not_finite() const;
  /// Steps left out since the worker was made; where stages decide by themselves the most of any of them.
  [[nodiscard]] std::int64_t skipped_steps() const;

  /// Of all stages of this rank.
  [[nodiscard]] GraphCounts graph_counts() const;
  [[nodiscard]] const std::vector<Event>& events()
      const;  ///< of the last `record_steps` steps; times since the worker was made
  /// Of this machine's monotonic clock (std::chrono::steady_clock): where the times of events() are 0.
  [[nodiscard]] Seconds clock_origin() const;
  /// Most bytes of tensors at once since the worker was made: on the CPU counted by the counting allocator,
  /// on a GPU by LibTorch's (as requested, and of all ranks that share it).
  [[nodiscard]] Bytes peak_bytes() const;
  /// How much of a core this rank's thread got in layers and updates; none on a device, and at the beginning.
  [[nodiscard]] std::optional<double> core_share() const;
  /// What no tensor counts too. None on a CPU.
  [[nodiscard]] std::optional<CardMemory> card_memory() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace stagecraft
