#pragma once

// A pipelined run in small, and whether it equals the oracle to the bit.

#include "engine/core/worker.h"
#include "engine/transport/nccl/wiring.h"
#include "schedules/generators/schedule.h"
#include "test/support/oracle.h"
#include "test/support/planted_layer.h"

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace stagecraft::test {

/// captured: a model captured from PyTorch, with masks, dropout, batch norm and a loss of its own, in float32 or
/// bfloat16. tied: likewise, and in float16; one weight in three of its layers and another in two. lengths:
/// likewise in float32, with samples cut to three lengths. straggler: layers that take their time
/// (models/layers/delay.cpp), one of them five times as long as the others; where stages have replicas, one
/// replica of all is slow too.
enum class ModelKind : std::uint8_t { mlp, convnet, gpt, captured, tied, straggler, lengths };
/// even: all micro-batches full. short_ends: the last micro-batch of a step and the last step of an epoch are
/// short. few: one micro-batch per step. many: seven, a multiple of no number of ranks.
enum class BatchShape : std::uint8_t { even, short_ends, few, many };
/// onednn: float32 with the products of that library (models/tensors/matrix_products.h).
enum class PrecisionKind : std::uint8_t { single, bf16, fp16, onednn };
/// Lion and Muon with averaged weights; NAdam and SGDW with groups of parameters.
enum class CaseOptimizer : std::uint8_t { sgd, adam, adamw, nadam, lion, adafactor, muon, sgdw };
inline constexpr std::size_t kCaseOptimizers = 8;
/// What becomes of the generated program before it is lowered (test/support/program_rewrites.h).
enum class Rewrite : std::uint8_t { none, split };

struct PipelineCase {
  std::string schedule = "1f1b";
  bool vertical_sync = false;
  int warmup_extra = 0;
  int stages = 2;
  int ranks = 0;  ///< that hold the stages; 0: a rank per stage
  PlacementKind placement = PlacementKind::straight;
  Rewrite rewrite = Rewrite::none;
  Recompute recompute = Recompute::none;  ///< of every stage
  std::vector<int> widths{};              ///< replicas at each position of the placement; empty: one each
  std::vector<int> cuts{};                ///< first layers of stages 1, 2, ...; empty: even
  std::vector<Skip> skips{};              ///< that go directly
  int frozen = 0;                         ///< first layers whose weights are frozen; no captured model's
  ModelKind model = ModelKind::mlp;
  BatchShape shape = BatchShape::even;
  CaseOptimizer optimizer = CaseOptimizer::sgd;
  PrecisionKind precision = PrecisionKind::single;
  bool dropout = false;
  double clipping = 0;
  at::Device device = at::kCPU;  ///< that computes, the oracle too
  /// Of the random delays; the same case with other delays must give the same bits.
  std::uint64_t delay_seed = 0;
  /// By another layer in front of layer `planted_at`. Steps from such gradients are skipped.
  std::vector<Planted> planted{};
  int planted_at = 0;

  [[nodiscard]] std::string name() const;
};

/// Whether the schedule is for such a placement and for all of the run's groups.
[[nodiscard]] bool served(const PipelineCase& pipeline);

struct Setting;

/// The programs of a case's segments, lowered and proved, each by the first rank that asks for it. Any thread.
class ProvedPrograms {
 public:
  [[nodiscard]] const LoweredProgram& of(const Setting& setting, const Segment& segment);
  [[nodiscard]] RankProgramPtr of(const Setting& setting, const Segment& segment, Rank rank);

 private:
  std::mutex mutex_;
  std::map<std::pair<const LoweredProgram*, Rank>, RankProgramPtr> of_ranks_;
  std::map<std::pair<SegmentKind, std::vector<int>>, LoweredProgram> known_;
};

/// Everything a case is made of. What its programs depend on stays as it is once one has been asked for.
struct Setting {
  explicit Setting(const PipelineCase& its_case);
  /// After a change of the model: optimizers know its parameters.
  void make_optimizer();

  PipelineCase pipeline;
  std::unique_ptr<Dataset> data;
  Model model;
  std::shared_ptr<const Loss> loss;
  Placement placement;
  std::vector<std::pair<int, int>> stage_layers;
  RunShape shape;
  WorkerOptions options;
  OracleRun oracle;
  bool rehearses = false;  ///< a device: before the first segment, one of each kind and size
  std::shared_ptr<ProvedPrograms> programs = std::make_shared<ProvedPrograms>();
};

/// The program of one segment, rewritten if it is a training one. `costs` for schedules that order by time.
[[nodiscard]] ScheduleProgram program_of(const Setting& setting, const Segment& segment,
                                         const CostTable* costs = nullptr);

/// The case's segments, but for those like an earlier one in kind and sizes, with their programs.
[[nodiscard]] std::vector<Worker::Rehearsed> segments_to_rehearse(const Setting& setting, Rank rank);

/// Those of all the case's segments, lowered and proved; `setting.programs` keeps them.
[[nodiscard]] std::vector<const LoweredProgram*> programs_of(const Setting& setting);

/// What NCCL needs for the case's programs. Throws RefusedError where it cannot carry them.
[[nodiscard]] transport::NcclWiring nccl_needs(const Setting& setting, SumOrder order = SumOrder::ordered);

/// What one rank saw and ended with.
struct Outcome {
  std::vector<StepReport> steps, validations;                 ///< on stage 0's rank
  std::map<std::pair<std::int64_t, int>, Tensors> gradients;  ///< by step and layer
  std::map<int, LayerState> state;                            ///< by layer
  std::vector<Event> events;
  GraphCounts graphs;
  std::int64_t skipped_steps = 0;
};

/// What a test does to a run on purpose.
struct Mischief {
  /// Changes a training program after it was lowered and proved.
  std::function<void(LoweredProgram&)> program{};
  /// Before the update that uses them.
  std::function<void(std::int64_t step, int layer, const Tensors& gradients)> gradients{};
  /// Changes what a rank takes the segment's data to be.
  std::function<void(Rank rank, Segment&)> segment{};
};

/// Runs this rank's part. Randomly delays calls of `transport`.
[[nodiscard]] Outcome run_rank(const Setting& setting, Transport& transport, const Mischief& mischief = {});

/// The oracle's result, computed once for all cases that share it.
[[nodiscard]] const OracleResult& oracle_of(const Setting& setting);

/// The first difference between what a rank got and the oracle, in words; empty when all bits are equal.
[[nodiscard]] std::string difference(const Outcome& outcome, const OracleResult& oracle, bool reports);
/// The same of all ranks, of which rank 0 reports.
[[nodiscard]] std::string difference(const std::vector<Outcome>& outcomes, const OracleResult& oracle);

/// A case over the local transport with synchronous sends and poisoned slots: the first difference of any
/// rank.
[[nodiscard]] std::string run_locally(const PipelineCase& pipeline, const Mischief& mischief = {});

}  // namespace stagecraft::test
