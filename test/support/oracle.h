#pragma once

// What a pipelined run must compute, to the bit: one process, a plain loop over micro-batches, no program, no
// schedule, no stage but as a number. It takes the version rule as a delay per stage, so that an error in a
// generator cannot hide in it. It shares with the engine only what has tests of its own: the layers, the
// gradient accumulator, the optimizer's update, the loss scale and the norm of one tensor.

#include "engine/optimizers/model_optimizer.h"
#include "engine/records/settings/learning_rate.h"
#include "engine/records/settings/loss_scale.h"
#include "models/data/dataset.h"
#include "models/losses/loss.h"
#include "models/model.h"

#include <cstdint>
#include <optional>
#include <vector>

namespace stagecraft::test {

struct OracleRun {
  std::int64_t batch = 1;
  std::int64_t micro_batch = 1;
  std::int64_t steps = 1;
  std::int64_t validate_every = 0;  ///< and at the end, where there is validation data

  /// First layer of every stage; the first is 0.
  std::vector<int> first_layers{0};
  /// Micro-batch x (counted from the last drain point) reads, on stage s, the weights as they are after all
  /// updates whose micro-batches are among the first x - delay[s].
  std::vector<int> delay{0};
  /// In its place: the micro-batches of the g-th update since the last drain point read, on every stage, the
  /// weights as they are after the first g - updates_late of them.
  std::optional<int> updates_late;
  /// Replicas of every stage: micro-batch x, counted as above, goes to replica x mod their number. Each adds up the
  /// gradients and the losses of its own; then they are added in the replicas' order. Empty: one each.
  std::vector<int> widths;
  /// Micro-batch x is forwarded on stage s when all updates whose micro-batches are among the first x -
  /// newest[s] are made there. Says no more than when replicas average their buffers, which an update brings
  /// with it; may be empty where there are no replicas.
  std::vector<int> newest;
  std::int64_t synchronous_steps = 0;  ///< after each of the first so many the run drains
  /// Steps between drain points: 1 for a synchronous run.
  std::int64_t drain_every = 1;

  ModelOptimizerPtr optimizer;
  SchedulerConfig scheduler;
  double gradient_clipping = 0;
  Fp16Config fp16;    ///< enabled: the loss is scaled
  bool norm = false;  ///< report the gradient's norm
  /// Updates from gradients that are not finite are left out: with `norm` of all layers, else of a stage's.
  bool skip = false;
  std::uint64_t seed = 0;
  bool shuffle = true;
  at::Device device = at::kCPU;  ///< that computes; results are the CPU's
};

struct OracleStep {
  double loss = 0;
  std::vector<double> terms{};  ///< of the loss
  std::optional<double> gradient_norm;
  std::optional<double> loss_scale;
  bool skipped = false;
  double learning_rate = 0;
  std::int64_t samples = 0;
  std::vector<Tensors> gradients;  ///< by layer, as the update used them
};

struct OracleValidation {
  std::int64_t after_steps = 0;
  double loss = 0;
  double correct = 0;
  std::vector<double> terms{};
};

struct OracleResult {
  std::vector<OracleStep> steps;
  std::vector<OracleValidation> validations;
  std::vector<Tensors> parameters, buffers;  ///< by layer, at the end
  std::vector<OptimizerState> optimizer;
};

[[nodiscard]] OracleResult run_oracle(const Model& model, const Loss& loss, const Dataset& data,
                                      const OracleRun& run);

}  // namespace stagecraft::test
