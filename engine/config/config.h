#pragma once

// run.json: everything a training run is told. Keys have DeepSpeed's names where the concept exists there;
// docs/reference/formats.md has a worked example and configs/run.schema.json the schema, generated from the
// descriptions below. Reading is strict: unknown keys, wrong types and numbers that do not add up throw
// InputError.

#include "base/json.h"
#include "engine/optimizers/optimizer_config.h"
#include "engine/records/settings/learning_rate.h"
#include "engine/records/settings/loss_scale.h"
#include "engine/records/settings/on_overflow.h"
#include "engine/records/settings/sum_order.h"
#include "engine/records/settings/threads.h"
#include "models/data/dataset.h"
#include "models/families/registry.h"
#include "models/losses/loss.h"
#include "schedules/generators/schedule.h"
#include "schedules/program/segments.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace stagecraft {

enum class DType : std::uint8_t { float32, float64 };
template <>
inline constexpr std::array enum_names<DType>{"float32", "float64"};

enum class DeviceKind : std::uint8_t { cpu, cuda };
template <>
inline constexpr std::array enum_names<DeviceKind>{"cpu", "cuda"};

/// What ranks are: threads of one process (local), processes under a launcher of MPI's (mpi) or torchrun (c10d), or
/// whichever of these the process was started for; and processes whose GPUs exchange tensors by themselves
/// (nccl).
enum class Backend : std::uint8_t { automatic, local, mpi, c10d, nccl };
template <>
inline constexpr std::array enum_names<Backend>{"auto", "local", "mpi", "c10d", "nccl"};

enum class LogLevel : std::uint8_t { debug, info, warning, error };
template <>
inline constexpr std::array enum_names<LogLevel>{"debug", "info", "warning", "error"};

/// Where a value goes that a stage makes for one behind its next: directly, or from stage to stage.
enum class Skips : std::uint8_t { direct, relay };
template <>
inline constexpr std::array enum_names<Skips>{"direct", "relay"};

/// What pipeline.schedule may be, for people.
[[nodiscard]] const char* schedule_names();

/// How many ranks a run may use, of those that a start has: it is planned for the most that these allow, and the
/// others wait as spares.
struct RankBounds {
  int min = 1;
  std::optional<int> max;
  int multiple_of = 1;

  /// The most of `there` ranks that may be used; 0 where none may.
  [[nodiscard]] int most_of(int there) const {
    const int most = std::min(there, max.value_or(there)) / multiple_of * multiple_of;
    return most >= min ? most : 0;
  }
};
template <class V>
void describe(V& v, RankBounds& b) {
  v.optional("min", b.min, "with fewer the run does not start", json::at_least(1));
  v.optional("max", b.max, "absent: all there are", json::at_least(1));
  v.optional("multiple_of", b.multiple_of, "such as the ranks of one machine", json::at_least(1));
  v.require(b.most_of(std::numeric_limits<int>::max()) > 0, "max",
            fmt::format("expected a multiple of {} from {} to max", b.multiple_of, b.min));
}

/// How the model becomes a pipeline. With a plan (here or --plan) the plan decides; keys given beside it must
/// agree with it.
struct PipelineConfig {
  std::optional<std::string> schedule;  ///< absent: the plan's, or 1f1b
  /// Absent: the schedule's number a launched rank, or what the planner finds best.
  std::optional<int> stages;
  std::optional<RankBounds> ranks;    ///< absent: all, and exactly so many as the stages need
  std::optional<int> virtual_stages;  ///< a rank; absent: the schedule's own number
  std::vector<int> cuts;              ///< first layers of stages 1, 2, ...; empty: the planner's
  std::vector<int> widths;            ///< replicas of each stage (of each round's stages); empty: one each
  std::optional<bool> vertical_sync;
  std::optional<int> warmup_extra;     ///< forwards more before the first backward
  std::optional<int> update_interval;  ///< asynchronous: micro-batches per update; equal to the step's
  std::int64_t synchronous_steps = 0;  ///< asynchronous: the run's first so many drain
  /// Absent: direct, where the schedule takes it and it fits.
  std::optional<Skips> skips;
  std::optional<std::string> plan;  ///< path of a plan.json
};
template <class V>
void describe(V& v, PipelineConfig& c) {
  v.optional("schedule", c.schedule, schedule_names());
  v.optional("stages", c.stages,
             "absent: as many a launched rank as the schedule has, or what the planner finds best",
             json::at_least(1));
  v.optional(
      "ranks", c.ranks,
      "how many ranks the run may use: each start plans for what it has, and what is left over waits as "
      "spares; absent: all that were launched");
  v.optional("virtual_stages", c.virtual_stages,
             "stages of one rank, for schedules that go round the ranks; absent: the schedule's own number",
             json::at_least(1));
  v.optional("cuts", c.cuts, "index of the first layer of stages 1, 2, ...; empty: the planner's");
  v.optional("widths", c.widths,
             "ranks of each stage, its replicas, among which micro-batches go round; empty: one each");
  for (const int replicas : c.widths) {
    v.require(replicas >= 1, "widths", fmt::format("a stage has at least one rank, not {}", replicas));
  }
  v.optional("vertical_sync", c.vertical_sync, "pipedream: one weight version a micro-batch on all stages");
  v.optional("warmup_extra", c.warmup_extra, "1f1b: forwards more before the first backward; hides transfers",
             json::at_least(0));
  v.optional("update_interval", c.update_interval,
             "asynchronous schedules: micro-batches per update; must be those of one train_batch_size",
             json::at_least(1));
  v.optional(
      "synchronous_steps", c.synchronous_steps,
      "asynchronous schedules: after each of the run's first so many steps the pipeline drains, so that "
      "they are synchronous",
      json::at_least(0));
  v.optional("skips", c.skips,
             "where a value goes that a stage makes for one behind its next: direct, or relay, from stage to "
             "stage; absent: direct where the schedule takes it and it fits");
  v.optional("plan", c.plan, "path of a plan.json to run", json::non_empty());
  v.require(!c.ranks || (!c.stages && c.cuts.empty() && c.widths.empty() && !c.plan), "ranks",
            "expected alone: stages, cuts, widths or a plan beside it say how many ranks there are");
}

/// The measurement behind a plan, where no plan is given.
struct ProfilerConfig {
  int repeats = 100;
  Seconds warmup{0.5};
  std::vector<std::int64_t> micro_batch_sizes;  ///< empty: the run's own
  int representatives = 3;
};
template <class V>
void describe(V& v, ProfilerConfig& c) {
  v.optional("repeats", c.repeats, "measurements behind each median", json::at_least(1));
  v.optional("warmup_ms", c.warmup, "measured and thrown away first", json::at_least(0));
  v.optional("micro_batch_sizes", c.micro_batch_sizes, "samples; empty: the run's micro-batch size");
  for (const std::int64_t size : c.micro_batch_sizes) {
    v.require(size >= 1, "micro_batch_sizes", fmt::format("expected sizes of at least 1, found {}", size));
  }
  v.optional("representatives", c.representatives,
             "of layers with equal graphs so many are run, the others get their figures; 0: all are run",
             json::at_least(0));
}

struct ValidationConfig {
  std::int64_t every_steps = 0;
};
template <class V>
void describe(V& v, ValidationConfig& c) {
  v.optional("every_steps", c.every_steps, "0: only after the last step, where there is validation data",
             json::at_least(0));
}

/// Where a checkpoint cannot be written, and there are steps to come.
enum class OnFailedSave : std::uint8_t { go_on, stop };
template <>
inline constexpr std::array enum_names<OnFailedSave>{"go_on", "stop"};

struct CheckpointConfig {
  std::int64_t every_steps = 0;
  std::int64_t keep = 2;
  bool at_start = false;
  bool in_background = false;
  OnFailedSave on_failure = OnFailedSave::go_on;
};
template <class V>
void describe(V& v, CheckpointConfig& c) {
  v.optional("every_steps", c.every_steps, "0: only after the last step", json::at_least(0));
  v.optional("keep", c.keep, "the newest so many are kept; 0: all", json::at_least(0));
  v.optional("at_start", c.at_start, "one before the first step: the initial weights, for another framework");
  v.optional(
      "in_background", c.in_background,
      "steps go on while it is written, from a copy: each rank needs memory for its weights and optimizer "
      "state once more");
  v.optional("on_failure", c.on_failure,
             "go_on: warn where one cannot be written, and try again at the next; the last one of a run, and "
             "one that "
             "a signal asks for, must be written. stop: the run ends with the error");
}

struct ReplanConfig {
  std::optional<double> when;
};
template <class V>
void describe(V& v, ReplanConfig& c) {
  v.optional(
      "when", c.when,
      "a rank that computes so many times as long as planned, and as the others: the run takes another "
      "plan at the next checkpoint, where one saves time. Synchronous schedules only",
      json::between(1.05, 100));
}

struct CommsConfig {
  Backend backend = Backend::automatic;
  SumOrder replica_sum = SumOrder::ordered;
  double timeout_s = 300;
  double start_up_timeout_s = 3600;
  double save_timeout_s = 3600;
  double stop_timeout_s = 10;
  double timeout_steps = 10;
  double timeout_pause_s = 60;
  bool synchronous_sends = false;
  bool poison_released_slots = false;
  int slots_per_channel = 0;
};
template <class V>
void describe(V& v, CommsConfig& c) {
  v.optional(
      "backend", c.backend,
      "auto: mpi under mpirun or srun, c10d under torchrun, else local (ranks are threads); with device "
      "cuda, nccl where every rank has a GPU of its own. local, mpi, c10d: GPUs' tensors go through the "
      "hosts' memory");
  v.optional(
      "replica_sum", c.replica_sum,
      "gradients of a stage's replicas are added in the replicas' order (ordered: the bits do not depend "
      "on the transport), or, from three on, as NCCL likes best (nccl, for backend nccl)");
  v.require(c.replica_sum == SumOrder::ordered || c.backend == Backend::nccl, "replica_sum",
            "\"nccl\" is NCCL's own order, and backend is \"" + enum_name(c.backend) +
                "\"; leave replica_sum out, or set backend to \"nccl\"");
  const json::Range seconds = json::between(0.001, 1e9);
  v.optional("timeout_s", c.timeout_s,
             "seconds: longest wait for another rank inside a step (10 predicted steps where that is more), "
             "and longest time without a sign of life of its process",
             seconds);
  v.optional("start_up_timeout_s", c.start_up_timeout_s,
             "seconds: longest wait for another rank that plans, loads data or a checkpoint", seconds);
  v.optional("save_timeout_s", c.save_timeout_s,
             "seconds: longest wait for another rank that writes a checkpoint or the run's last files",
             seconds);
  v.optional(
      "stop_timeout_s", c.stop_timeout_s,
      "seconds: a step that is not over so long after a SIGTERM is left, and the state before it is saved",
      seconds);
  v.optional("timeout_steps", c.timeout_steps,
             "once 20 steps have been measured, a wait inside one lasts at most so many times as long as the "
             "slowest of them and timeout_pause_s more, where that is less than timeout_s allows; 0: only "
             "timeout_s bounds it",
             json::between(0, 1e6));
  v.optional("timeout_pause_s", c.timeout_pause_s,
             "seconds: beside timeout_steps, for disks and networks that pause", seconds);
  v.optional("synchronous_sends", c.synchronous_sends,
             "every send waits for its receive (MPI_Ssend): slower, what the proof assumes");
  v.optional("poison_released_slots", c.poison_released_slots,
             "fill receive buffers with NaN when they are released: shows a late reader");
  v.optional("slots_per_channel", c.slots_per_channel, "receive buffers; 0: the least that works, plus one",
             json::at_least(0));
}

struct LogConfig {
  LogLevel level = LogLevel::info;
  int timeline_steps = 8;
};
template <class V>
void describe(V& v, LogConfig& c) {
  v.optional("level", c.level, "of the ranks' log files");
  v.optional("timeline_steps", c.timeline_steps, "last steps kept in timeline.json; 0: none",
             json::at_least(0));
}

struct CudaConfig {
  bool tf32 = false;
  bool deterministic = false;
  bool graphs = true;
};
template <class V>
void describe(V& v, CudaConfig& c) {
  v.optional("tf32", c.tf32, "float32 products with inputs rounded to 10 bits: faster, less exact");
  v.optional(
      "deterministic", c.deterministic,
      "only operators that give the same bits every time; a captured model with an operator that has no "
      "such form is refused when it is opened, and one in a layer of your own ends the run");
  v.optional("graphs", c.graphs,
             "record forwards and backwards once and repeat them as CUDA graphs: the same bits, fewer "
             "launches, more memory. With device cpu nothing is recorded, whatever this says");
}

struct Bf16Config {
  bool enabled = false;
};
template <class V>
void describe(V& v, Bf16Config& c) {
  v.optional("enabled", c.enabled, "activations and what layers read of weights in bfloat16");
}

/// Recomputation. With a plan the plan decides, and this must agree with it.
struct ActivationCheckpointingConfig {
  std::optional<RecomputeAsked> recompute;  ///< absent: the plan's, or none
};
template <class V>
void describe(V& v, ActivationCheckpointingConfig& c) {
  v.optional("recompute", c.recompute,
             "on every stage; all_but_last: all but the last micro-batch of a step; auto: the plan's, or for "
             "each stage the least that fits; absent: the plan's, or none");
}

struct RunConfig {
  ModelConfig model;
  DataConfig data;
  std::optional<LossConfig> loss;  ///< absent: the model's own
  OptimizerConfig optimizer;
  SchedulerConfig scheduler;
  double gradient_clipping = 0;
  bool gradient_norm = true;
  std::optional<OnOverflow> on_overflow;  ///< absent: stop; with fp16 skip
  std::int64_t train_batch_size = 1;
  std::int64_t micro_batch_size = 1;
  std::optional<std::int64_t> gradient_accumulation_steps;
  std::optional<std::int64_t> train_steps;
  std::optional<std::int64_t> epochs;
  std::int64_t seed = 0;
  DeviceKind device = DeviceKind::cpu;
  CudaConfig cuda;
  DType dtype = DType::float32;
  std::optional<MatrixProducts> matrix_products;  ///< absent: blas
  Bf16Config bf16;
  Fp16Config fp16;
  ActivationCheckpointingConfig activation_checkpointing;
  std::int64_t steps_per_print = 10;
  PipelineConfig pipeline;
  ProfilerConfig profiler;
  ValidationConfig validation;
  CheckpointConfig checkpoint;
  ReplanConfig replan;
  CommsConfig comms;
  int threads_per_rank = 0;
  std::optional<std::string> cluster;
  std::optional<std::string> initial_checkpoint;
  std::string run_dir = "runs/run";
  LogConfig log;

  [[nodiscard]] OnOverflow overflow_policy() const {
    return on_overflow.value_or(fp16.enabled ? OnOverflow::skip : OnOverflow::stop);
  }
  /// Micro-batches of one step: ceil(train_batch_size / micro_batch_size).
  [[nodiscard]] int micro_batches() const {
    return static_cast<int>((train_batch_size - 1) / micro_batch_size + 1);
  }
};
template <class V>
void describe(V& v, RunConfig& c) {
  v.required("model", c.model, "what is trained");
  v.required("data", c.data, "what it is trained on");
  v.optional("loss", c.loss, "what is made small; absent: the loss that the model brings");
  v.optional("optimizer", c.optimizer,
             "optimizer; absent: SGD; an asynchronous pipeline.schedule needs one (docs/convergence.md)");
  v.optional("scheduler", c.scheduler, "learning rate over steps");
  v.optional("gradient_clipping", c.gradient_clipping,
             "largest global norm of a step's gradient; 0: none. Synchronous schedules only",
             json::at_least(0));
  v.optional("gradient_norm", c.gradient_norm,
             "synchronous schedules: report the global norm even where nothing is clipped");
  v.optional("on_overflow", c.on_overflow,
             "a step whose gradient is not finite; stop: the run ends before it; skip: it is left out and "
             "counted, and the hundredth in a row ends the run. Absent: stop, or skip with fp16");
  constexpr auto most_samples = static_cast<double>(kMostRunSamples);
  constexpr auto most_steps = static_cast<double>(kMostRunSteps);
  v.required("train_batch_size", c.train_batch_size, "samples of one optimizer step",
             json::between(1, most_samples));
  v.required("train_micro_batch_size_per_gpu", c.micro_batch_size,
             "samples that go through the pipeline at once", json::between(1, most_samples));
  v.optional("gradient_accumulation_steps", c.gradient_accumulation_steps,
             "micro-batches of one step; follows from the two sizes and must agree with them",
             json::at_least(1));
  v.optional("train_steps", c.train_steps, "optimizer steps; this or epochs", json::between(1, most_steps));
  v.optional("epochs", c.epochs, "passes over the data; this or train_steps", json::between(1, most_steps));
  v.optional("seed", c.seed, "of initial weights, shuffling and dropout", json::at_least(0));
  v.optional("device", c.device, "that computes; cuda: the machine's GPUs are given to its ranks in turn");
  v.optional("cuda", c.cuda, "with device cuda");
  v.optional("dtype", c.dtype,
             "of weights, gradients and optimizer state, and of activations unless bf16 or fp16 is enabled");
  v.optional(
      "matrix_products", c.matrix_products,
      "library of float32 matrix products on the CPU; blas: as PyTorch, to the bit; onednn: faster on "
      "some processors (doctor measures both; where it is much faster, a run that does not choose says so), "
      "and rounds otherwise");
  v.optional("bf16", c.bf16, "mixed precision with bfloat16: steps update float32 weights");
  v.optional("fp16", c.fp16, "mixed precision with float16 and a scaled loss: steps update float32 weights");
  v.optional("activation_checkpointing", c.activation_checkpointing,
             "forwards repeated before their backward instead of keeping their activations");
  v.optional("steps_per_print", c.steps_per_print, "steps between two lines; 0: none", json::at_least(0));
  v.optional("pipeline", c.pipeline, "stages and schedule");
  v.optional("profiler", c.profiler, "the measurement behind a plan");
  v.optional("validation", c.validation, "on the data's validation part");
  v.optional("checkpoint", c.checkpoint, "saved state");
  v.optional("replan", c.replan, "another plan while the run goes");
  v.optional("comms", c.comms, "transfers between ranks");
  v.optional("threads_per_rank", c.threads_per_rank, "of LibTorch's operators; 0: cores over ranks",
             json::between(0, kMostThreadsPerRank));
  v.optional("cluster", c.cluster, "path of a cluster.json to plan for; absent: this machine",
             json::non_empty());
  v.optional("initial_checkpoint", c.initial_checkpoint,
             "folder of a checkpoint whose weights (not its optimizer state) the run starts from",
             json::non_empty());
  v.optional("run_dir", c.run_dir, "where the run keeps its files", json::non_empty());
  v.optional("log", c.log, "log files and timeline");
  v.require(c.micro_batch_size <= c.train_batch_size, "train_micro_batch_size_per_gpu",
            "a micro-batch of " + std::to_string(c.micro_batch_size) +
                " samples does not fit into train_batch_size " + std::to_string(c.train_batch_size));
  const std::int64_t m = (c.train_batch_size - 1) / c.micro_batch_size + 1;
  v.require(m <= kMaxMicroBatches, "train_micro_batch_size_per_gpu",
            "train_batch_size " + std::to_string(c.train_batch_size) + " in micro-batches of " +
                std::to_string(c.micro_batch_size) + " samples makes " + std::to_string(m) +
                " micro-batches; expected at most " + std::to_string(kMaxMicroBatches));
  v.require(c.gradient_accumulation_steps.value_or(m) == m, "gradient_accumulation_steps",
            "train_batch_size " + std::to_string(c.train_batch_size) + ", train_micro_batch_size_per_gpu " +
                std::to_string(c.micro_batch_size) + " and gradient_accumulation_steps " +
                std::to_string(c.gradient_accumulation_steps.value_or(m)) +
                " do not add up: " + std::to_string(c.train_batch_size) + " samples in micro-batches of " +
                std::to_string(c.micro_batch_size) + " are " + std::to_string(m) +
                "; leave it out or set it to " + std::to_string(m));
  v.require(c.train_steps.has_value() != c.epochs.has_value(), "",
            "expected either \"train_steps\" or \"epochs\"");
  v.require(c.gradient_clipping == 0 || c.gradient_norm, "gradient_norm",
            "gradient_clipping needs the norm; leave gradient_norm out or set it to true");
  v.require(!c.fp16.enabled || c.gradient_norm, "gradient_norm",
            "fp16 hears of overflows by the norm; leave gradient_norm out or set it to true");
  v.require(!c.fp16.enabled || c.on_overflow.value_or(OnOverflow::skip) == OnOverflow::skip, "on_overflow",
            "fp16 finds its loss scale by skipping; leave on_overflow out or set it to \"skip\"");
  v.require(!c.bf16.enabled || !c.fp16.enabled, "fp16", "bf16 and fp16 are both enabled; choose one");
  v.require(c.dtype == DType::float32 || !(c.bf16.enabled || c.fp16.enabled), "dtype",
            "mixed precision updates float32 weights; leave dtype out, or bf16 and fp16");
  v.require(
      c.matrix_products != MatrixProducts::onednn ||
          (c.device == DeviceKind::cpu && c.dtype == DType::float32 && !c.bf16.enabled && !c.fp16.enabled),
      "matrix_products", "onednn is for float32 on the CPU; leave it out (bf16 products use oneDNN anyway)");
}

/// `path` with `overrides` ("a.b=v", the value JSON or a bare string) put into it. Throws InputError, which names
/// --set beside the file where what is wrong came with the overrides.
[[nodiscard]] RunConfig read_run_config(const std::string& path,
                                        const std::vector<std::string>& overrides = {});

/// The same of a config that lies in no file; `name` stands for it in messages.
[[nodiscard]] RunConfig run_config_from(const Json& json, const std::string& name);

/// Puts "a.b=v" into `json`: objects on the way are made, list elements go by index. Whether the path exists
/// is for the strict reader to say.
void apply_override(Json& json, const std::string& override_text);

/// What the config asks for, or the schedule has where it is not asked.
[[nodiscard]] int stages_per_rank(const PipelineConfig& pipeline, const Schedule& schedule);

/// Throws InputError where the config asks for what the schedule cannot do: an option it does not take,
/// clipping without a moment for it, another update interval than a step's. `file` names the config.
void check_schedule(const RunConfig& config, const std::string& schedule, const std::string& file);

/// The JSON Schema of run.json.
[[nodiscard]] Json run_config_schema();

/// What decides a run's numbers, for comparing the runs behind a checkpoint and its resume: model, data,
/// loss, optimizer, scheduler (a length that follows from the run's `steps` put in), batch, seed and
/// precision. Not where the data lies: its fingerprint is compared. Not the pipeline: a synchronous run may
/// go on with another. An asynchronous run's drain points are part of its numbers.
[[nodiscard]] Json training_identity(const RunConfig& config, std::int64_t steps, bool synchronous);

}  // namespace stagecraft
