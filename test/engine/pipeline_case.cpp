#include "test/engine/pipeline_case.h"

#include "engine/optimizers/adafactor.h"
#include "engine/optimizers/adam.h"
#include "engine/optimizers/lion.h"
#include "engine/optimizers/muon.h"
#include "engine/optimizers/nadam.h"
#include "engine/optimizers/sgd.h"
#include "models/data/buckets.h"
#include "models/data/synthetic.h"
#include "models/families/captured.h"
#include "schedules/checker/checker.h"
#include "schedules/checker/nccl_rules.h"
#include "schedules/generators/registry.h"
#include "schedules/lowering/lowering.h"
#include "test/engine/delays.h"
#include "test/support/built_in.h"
#include "test/support/frozen_layer.h"
#include "test/support/padded_data.h"
#include "test/support/program_rewrites.h"
#include "test/support/ranks.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <mutex>
#include <numeric>
#include <set>
#include <thread>

namespace stagecraft::test {
namespace {

constexpr std::int64_t kSteps = 7;  // more than two epochs
constexpr std::int64_t kValidateEvery = 3;
constexpr std::uint64_t kSeed = 17;
constexpr std::int64_t kValidationSamples = 10;
constexpr std::int64_t kSynchronousSteps = 2;  // of asynchronous runs with many micro-batches

const char* name_of(ModelKind kind) {
  constexpr const char* kNames[] = {"mlp", "convnet", "gpt", "captured", "tied", "straggler", "lengths"};
  return kNames[static_cast<int>(kind)];
}

/// Pairs of a linear layer and a delay; the delay in the middle is that of a slow rank. With `replicas`
/// micro-batches of odd numbers, those of every second replica, are slower as well.
SequentialConfig straggler(bool replicas) {
  SequentialConfig config;
  constexpr int kPairs = 5;
  for (int i = 0; i < kPairs; ++i) {
    const Seconds time{i == kPairs / 2 ? 0.5e-3 : 0.1e-3};
    config.layers.push_back({LinearSpec{10}, {}});
    config.layers.push_back({DelaySpec{.forward = time,
                                       .backward_input = time,
                                       .backward_weight = time,
                                       .features = i + 1 < kPairs ? 12 - i : 5,
                                       .parameters = 3,
                                       .factors = replicas ? std::vector{1.0, 5.0} : std::vector<double>{}},
                             {}});
  }
  return config;
}

/// In which a captured model computes in the case's type. The build's, or where a machine without it has them.
std::string folder_of(const PipelineCase& c) {
  const char* const elsewhere = std::getenv("STAGECRAFT_CAPTURED_MODELS");
  const std::string of_type = c.precision == PrecisionKind::bf16   ? "_bf16"
                              : c.precision == PrecisionKind::fp16 ? "_fp16"
                                                                   : "";
  return fmt::format("{}/{}{}", elsewhere != nullptr ? elsewhere : STAGECRAFT_CAPTURED_MODELS,
                     c.model == ModelKind::captured ? "mixed" : name_of(c.model), of_type);
}

ModelConfig model_config(const PipelineCase& c) {
  const double dropout = c.dropout ? 0.25 : 0;
  switch (c.model) {
    case ModelKind::mlp:
      return {MlpConfig{.hidden = {12, 10, 8, 7}, .dropout = dropout}};
    case ModelKind::convnet:
      return {ConvnetConfig{.groups = {{3}, {4}}, .classifier = {6}, .dropout = dropout}};
    case ModelKind::straggler:
      return {straggler(!c.widths.empty())};
    case ModelKind::captured:
    case ModelKind::lengths:
    case ModelKind::tied: {
      CapturedConfig captured;
      captured.path = folder_of(c);
      return {captured};
    }
    case ModelKind::gpt:
      break;
  }
  return {
      GptConfig{.blocks = 3, .hidden_size = 8, .heads = 2, .dropout = dropout, .attention_dropout = dropout}};
}

/// Samples, mini-batch and micro-batch of a shape.
struct Sizes {
  std::int64_t samples, batch, micro_batch;
};
Sizes sizes(BatchShape shape) {
  switch (shape) {
    case BatchShape::even:
      return {36, 12, 3};
    case BatchShape::short_ends:
      return {31, 12, 5};  // steps of 5 + 5 + 2 and, at an epoch's end, 5 + 2
    case BatchShape::few:
      return {10, 4, 4};
    case BatchShape::many:
      break;
  }
  return {28, 14, 2};
}

std::unique_ptr<Dataset> data_of(const PipelineCase& c) {
  if (c.model == ModelKind::captured || c.model == ModelKind::tied || c.model == ModelKind::lengths) {
    auto padded = std::make_unique<PaddedData>(sizes(c.shape).samples, kValidationSamples);
    if (c.model != ModelKind::lengths) return padded;
    return in_buckets(std::move(padded), {2, 3, 4}, {"test", "/data/buckets"});
  }
  SyntheticDataConfig config;
  config.samples = sizes(c.shape).samples;
  config.validation_samples = kValidationSamples;
  config.classes = 5;
  switch (c.model) {
    case ModelKind::mlp:
    case ModelKind::straggler:
      config.shape = {6};
      break;
    case ModelKind::convnet:
      config.shape = {1, 8, 8};
      break;
    case ModelKind::gpt:
      config.task = "tokens";
      config.shape = {6};
      config.classes = 11;
      break;
    case ModelKind::captured:
    case ModelKind::lengths:
    case ModelKind::tied:
      break;
  }
  return open_dataset({.source = config}, {"test", "/data"});
}

OptimizerConfig optimizer_config(CaseOptimizer kind) {
  AdamConfig adam;
  AdamWConfig adamw;
  adam.lr = adamw.lr = 0.01;
  adam.weight_decay = 0.05;
  const ParameterGroup vectors{.most_dimensions = 1, .lr = 0.02, .weight_decay = 0};
  switch (kind) {
    case CaseOptimizer::sgd:
      return {.type = SgdConfig{.lr = 0.05, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true}};
    case CaseOptimizer::adam:
      return {.type = adam};
    case CaseOptimizer::nadam:
      return {.type = NAdamConfig{.lr = 0.01, .weight_decay = 0.05}, .groups = {vectors}};
    case CaseOptimizer::lion:
      return {.type = LionConfig{.lr = 0.002, .weight_decay = 0.1}, .ema_decay = 0.8};
    case CaseOptimizer::adafactor:
      return {.type = AdafactorConfig{.lr = 0.05, .weight_decay = 0.01}};
    case CaseOptimizer::muon:
      return {.type = MuonConfig{.lr = 0.02, .adam_lr = 0.01},
              .ema_decay = 0.8,
              .staleness = {.look_ahead = 0.7}};
    case CaseOptimizer::sgdw:
      return {.type = SgdWConfig{{.lr = 0.05, .momentum = 0.9, .weight_decay = 0.1}}, .groups = {vectors}};
    case CaseOptimizer::adamw:
      break;
  }
  return {.type = adamw, .staleness = {.look_ahead = 1, .discount_steps = 5}};
}

std::shared_ptr<const Loss> loss_of(const PipelineCase& c, const Model& model) {
  if (model.loss) return model.loss;
  if (c.model == ModelKind::gpt) return LossConfig{TokenCrossEntropy{}}.make();
  return LossConfig{CrossEntropy{}}.make();
}

Precision precision_of(const PipelineCase& c) {
  Precision precision = at::kFloat;
  if (c.precision == PrecisionKind::onednn) precision.products = MatrixProducts::onednn;
  if (c.precision == PrecisionKind::single || c.precision == PrecisionKind::onednn) return precision;
  return {at::kFloat, c.precision == PrecisionKind::bf16 ? at::kBFloat16 : at::kHalf};
}

/// A scale that overflows at first and grows back soon.
Fp16Config loss_scaling(const PipelineCase& c) {
  return {.enabled = c.precision == PrecisionKind::fp16,
          .initial_scale_power = 20,
          .loss_scale_window = 2,
          .hysteresis = 1};
}

bool agrees_on_norm(const PipelineCase& c) { return c.clipping > 0 || c.precision == PrecisionKind::fp16; }

bool synchronous(const PipelineCase& c) { return find_schedule(c.schedule).synchronous; }

/// Where a stage stands: round after round, in a V every other one backwards.
std::size_t position_of(const PipelineCase& c, int stage) {
  const int positions = static_cast<int>(c.widths.size());
  const bool back = c.placement == PlacementKind::v && stage / positions % 2 == 1;
  return static_cast<std::size_t>(back ? positions - 1 - stage % positions : stage % positions);
}

/// Positions are as wide as `widths` says, on consecutive ranks.
Placement replicated_placement(const PipelineCase& c) {
  Placement placement;
  for (int s = 0; s < c.stages; ++s) {
    const std::size_t position = position_of(c, s);
    const int first = std::accumulate(c.widths.begin(), c.widths.begin() + static_cast<long>(position), 0);
    std::vector<Rank>& ranks = placement.ranks.emplace_back();
    for (int replica = 0; replica < c.widths[position]; ++replica) ranks.emplace_back(first + replica);
  }
  return placement;
}

Placement placement_of(const PipelineCase& c) {
  if (!c.widths.empty()) return replicated_placement(c);
  const int stages_per_rank = c.ranks == 0 ? 1 : c.stages / c.ranks;
  return c.placement == PlacementKind::v ? Placement::zigzag(c.stages / stages_per_rank, stages_per_rank)
                                         : Placement::looped(c.stages / stages_per_rank, stages_per_rank);
}

RunShape run_shape(const PipelineCase& c) {
  const Sizes numbers = sizes(c.shape);
  return {.samples = numbers.samples,
          .validation_samples = kValidationSamples,
          .batch = numbers.batch,
          .micro_batch = numbers.micro_batch,
          .steps = kSteps,
          .validate_every = kValidateEvery,
          .synchronous = synchronous(c),
          .synchronous_steps = c.shape == BatchShape::many ? kSynchronousSteps : 0};
}

ScheduleRequest request(const PipelineCase& c, const Segment& segment) {
  ScheduleRequest request;
  request.placement = placement_of(c);
  request.group_sizes = segment.group_sizes;
  request.vertical_sync = c.vertical_sync;
  request.warmup_extra = c.warmup_extra;
  request.clip = agrees_on_norm(c);
  request.recompute.assign(request.placement.ranks.size(), c.recompute);
  return request;
}

void rewrite(ScheduleProgram& program, const PipelineCase& c) {
  if (c.rewrite == Rewrite::split) split_backwards(program, /*most_behind=*/5, c.delay_seed);
}

/// To the bit: what overflowed may be no number, which equals nothing.
bool same(const Tensors& a, const Tensors& b) {
  const auto bits = [](const at::Tensor& tensor) { return tensor.view({-1}).view(at::kByte); };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](const at::Tensor& x, const at::Tensor& y) {
    return x.sizes() == y.sizes() && at::equal(bits(x), bits(y));
  });
}

bool same(double a, double b) { return a == b || (std::isnan(a) && std::isnan(b)); }

bool same(const std::vector<double>& a, const std::vector<double>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](double x, double y) { return same(x, y); });
}

bool same(const OptimizerState& a, const OptimizerState& b) {
  if (a.steps != b.steps || a.tensors.size() != b.tensors.size()) return false;
  for (std::size_t i = 0; i < a.tensors.size(); ++i) {
    if (a.tensors[i].size() != b.tensors[i].size()) return false;
    for (const auto& [name, tensor] : a.tensors[i]) {
      const auto other = b.tensors[i].find(name);
      if (other == b.tensors[i].end() || !at::equal(tensor, other->second)) return false;
    }
  }
  return true;
}

}  // namespace

std::string PipelineCase::name() const {
  constexpr const char* kShapes[] = {"even", "short", "m<p", "many"};
  constexpr const char* kRewrites[] = {"", " split"};
  constexpr const char* kPrecisions[] = {"", " bf16", " fp16", " onednn"};
  constexpr const char* kOptimizers[] = {"sgd",  "adam",      "adamw", "nadam",
                                         "lion", "adafactor", "muon",  "sgdw"};
  return fmt::format("{}{}{} p={}{}{} {}{}{}{}{} {}{} {} {}{}{}{}{} delays {}", schedule,
                     vertical_sync ? "+vertical_sync" : "",
                     warmup_extra > 0 ? fmt::format("+{}", warmup_extra) : "", stages,
                     ranks > 0 ? fmt::format(" ranks={}", ranks) : "",
                     widths.empty() ? "" : fmt::format(" widths={}", fmt::join(widths, "-")),
                     enum_name(placement), kRewrites[static_cast<int>(rewrite)],
                     recompute == Recompute::none ? "" : " recompute " + enum_name(recompute),
                     cuts.empty() ? "" : fmt::format(" cuts={}", fmt::join(cuts, ",")),
                     skips.empty() ? "" : " skips", name_of(model), kPrecisions[static_cast<int>(precision)],
                     kShapes[static_cast<int>(shape)], kOptimizers[static_cast<int>(optimizer)],
                     dropout ? " dropout" : "", frozen > 0 ? fmt::format(" frozen {}", frozen) : "",
                     clipping > 0 ? fmt::format(" clip {}", clipping) : "",
                     device.is_cpu() ? "" : " on " + device.str(), delay_seed) +
         planted_words(planted, planted_at);
}

namespace {

/// By how many micro-batches the newest weights of a stage are behind: 1F1B-RR with NOAM in flight (SOSP'19,
/// 3.2), where a replica of stage s runs as many of its own ahead as fill the stages behind it.
int newest_behind(const PipelineCase& c, int stage) {
  if (c.widths.empty()) return c.stages - 1 - stage;
  const int replicas = c.widths[static_cast<std::size_t>(stage)];
  const int behind = std::accumulate(c.widths.begin() + stage, c.widths.end(), 0);
  return ((behind + replicas - 1) / replicas - 1) * replicas;
}

/// Which versions a schedule's micro-batches read, as numbers: from its paper, not from its program.
void set_version_rule(OracleRun& oracle, const PipelineCase& c) {
  for (int s = 0; s < c.stages; ++s) {
    if (synchronous(c)) {
      oracle.delay.push_back(0);
    } else if (c.schedule == "pipedream") {  // SOSP'19, 3.3
      oracle.delay.push_back(newest_behind(c, c.vertical_sync ? 0 : s));
    } else if (c.schedule == "2bw") {  // arXiv 2006.09503, 3.1
      oracle.updates_late = 1;
    } else {
      throw std::logic_error("say here which versions " + c.schedule + " reads");
    }
    oracle.newest.push_back(synchronous(c) ? 0 : newest_behind(c, s));
    if (!c.widths.empty()) oracle.widths.push_back(c.widths[position_of(c, s)]);
  }
}

}  // namespace

bool served(const PipelineCase& pipeline) {
  const Schedule& schedule = find_schedule(pipeline.schedule);
  SegmentWalk walk(run_shape(pipeline));
  bool changed = pipeline.rewrite == Rewrite::none;
  std::set<std::vector<int>> tried;
  try {
    for (Segment segment; walk.next(segment);) {
      if (segment.kind == SegmentKind::validate || !tried.insert(segment.group_sizes).second) continue;
      ScheduleRequest asked = request(pipeline, segment);
      asked.recompute.clear();  // changes nothing here, and takes time
      const ScheduleProgram program = schedule.generate(asked);
      ScheduleProgram other = program;
      rewrite(other, pipeline);
      changed = changed || other != program;
    }
  } catch (const InputError&) {
    return false;
  }
  return changed;
}

Setting::Setting(const PipelineCase& its_case)
    : pipeline(its_case),
      data(data_of(its_case)),
      model(build_model(model_config(its_case), data->sample(), precision_of(its_case), {"test", "/model"})),
      loss(loss_of(its_case, model)),
      placement(placement_of(its_case)),
      shape(run_shape(its_case)) {
  if (!pipeline.planted.empty()) plant(model, pipeline.planted_at, pipeline.planted);
  if (pipeline.frozen > 0) freeze_layers(model, pipeline.frozen, kSeed);
  const int layers = static_cast<int>(model.layers.size());
  const int p = pipeline.stages;
  const auto first_of = [&](int s) {
    if (s == 0 || s == p) return s == 0 ? 0 : layers;
    return pipeline.cuts.empty() ? s * layers / p : pipeline.cuts[static_cast<std::size_t>(s) - 1];
  };
  for (int s = 0; s < p; ++s) stage_layers.emplace_back(first_of(s), first_of(s + 1));

  options.scheduler = {WarmupLRConfig{.warmup_min_lr = 0.001, .warmup_max_lr = 0.02, .warmup_num_steps = 4}};
  options.total_steps = kSteps;
  options.gradient_clipping = pipeline.clipping;
  options.fp16 = loss_scaling(pipeline);
  if (!pipeline.planted.empty()) options.on_overflow = OnOverflow::skip;
  options.seed = kSeed;
  options.device = pipeline.device;
  options.micro_batch_size = shape.micro_batch;
  options.batch_size = shape.batch;
  options.poison_released_slots = true;
  options.record_steps = 3;

  oracle = {.batch = shape.batch,
            .micro_batch = shape.micro_batch,
            .steps = kSteps,
            .validate_every = kValidateEvery,
            .first_layers = {},
            .delay = {},
            .updates_late = {},
            .widths = {},
            .newest = {},
            .synchronous_steps = shape.synchronous_steps,
            .drain_every = shape.synchronous ? 1 : kValidateEvery,
            .optimizer = {},
            .scheduler = options.scheduler,
            .gradient_clipping = pipeline.clipping,
            .fp16 = options.fp16,
            .norm = agrees_on_norm(pipeline),
            .skip = options.on_overflow == OnOverflow::skip,
            .seed = options.seed,
            .device = pipeline.device};
  for (const auto& [first, last] : stage_layers) oracle.first_layers.push_back(first);
  set_version_rule(oracle, pipeline);
  make_optimizer();
}

void Setting::make_optimizer() {
  options.optimizer = oracle.optimizer = std::make_shared<const ModelOptimizer>(
      optimizer_config(pipeline.optimizer), model, InputPlace{"test", "/optimizer"});
}

namespace {

/// The stages of the layers that hold each tied weight.
std::vector<std::vector<StageId>> ties_of(const Setting& setting) {
  std::vector<std::vector<StageId>> ties;
  for (const Tie& tie : setting.model.ties) {
    std::vector<StageId>& stages = ties.emplace_back();
    for (const Tie::Holder& holder : tie.holders) {
      for (std::size_t s = 0; s < setting.stage_layers.size(); ++s) {
        const auto [first, last] = setting.stage_layers[s];
        if (first <= holder.layer && holder.layer < last) stages.emplace_back(s);
      }
    }
  }
  return ties;
}

}  // namespace

ScheduleProgram program_of(const Setting& setting, const Segment& segment, const CostTable* costs) {
  std::vector<StageId> also_load;
  for (std::size_t s = 1; s + 1 < setting.stage_layers.size(); ++s) {
    const auto [first, last] = setting.stage_layers[s];
    if (!setting.model.fields_of(first, last, nullptr).empty()) also_load.emplace_back(s);
  }
  if (segment.kind == SegmentKind::validate) {
    return validation_program(setting.placement, segment.group_sizes.front(), also_load,
                              setting.pipeline.skips);
  }
  ScheduleRequest asked = request(setting.pipeline, segment);
  asked.also_load = also_load;
  asked.ties = ties_of(setting);
  asked.skips = setting.pipeline.skips;
  asked.gradient_from = StageId{0};
  while (setting.stage_layers[asked.gradient_from.index()].second <= setting.model.gradient_from)
    ++asked.gradient_from.value;
  asked.costs = costs;
  ScheduleProgram program = find_schedule(setting.pipeline.schedule).generate(asked);
  rewrite(program, setting.pipeline);
  return program;
}

const LoweredProgram& ProvedPrograms::of(const Setting& setting, const Segment& segment) {
  const std::lock_guard lock(mutex_);
  const std::pair key{segment.kind, segment.group_sizes};
  if (const auto found = known_.find(key); found != known_.end()) return found->second;
  LoweredProgram lowered = lower(program_of(setting, segment));
  (void)prove(lowered);
  return known_.emplace(key, std::move(lowered)).first->second;
}

RankProgramPtr ProvedPrograms::of(const Setting& setting, const Segment& segment, Rank rank) {
  const LoweredProgram& program = of(setting, segment);
  const std::lock_guard lock(mutex_);
  RankProgramPtr& its = of_ranks_[{&program, rank}];
  if (its == nullptr) its = rank_program(program, rank);
  return its;
}

std::vector<Worker::Rehearsed> segments_to_rehearse(const Setting& setting, Rank rank) {
  std::vector<Worker::Rehearsed> segments;
  std::set<std::tuple<SegmentKind, std::vector<int>, std::vector<std::int64_t>>> known;
  SegmentWalk walk(setting.shape);
  for (Segment segment; walk.next(segment);) {
    std::vector<std::int64_t> sizes;
    for (const MicroBatchRange& range : segment.micro_batches) sizes.push_back(range.count);
    if (!known.emplace(segment.kind, segment.group_sizes, std::move(sizes)).second) continue;
    segments.emplace_back(setting.programs->of(setting, segment, rank), segment);
  }
  return segments;
}

std::vector<const LoweredProgram*> programs_of(const Setting& setting) {
  std::vector<const LoweredProgram*> programs;
  SegmentWalk walk(setting.shape);
  for (Segment segment; walk.next(segment);) programs.push_back(&setting.programs->of(setting, segment));
  return programs;
}

transport::NcclWiring nccl_needs(const Setting& setting, SumOrder order) {
  const bool clips = setting.options.gradient_clipping > 0 && !setting.options.fp16.enabled &&
                     setting.options.on_overflow == OnOverflow::stop;
  return transport::nccl_wiring(programs_of(setting), nccl_rules_for(programs_of(setting)), order, clips);
}

const OracleResult& oracle_of(const Setting& setting) {
  // Results depend on no placement or rewrite, synchronous ones on no schedule or cuts either: the key leaves
  // them out.
  PipelineCase key = setting.pipeline;
  key.delay_seed = 0;
  key.ranks = 0;
  key.placement = PlacementKind::straight;
  key.warmup_extra = 0;
  key.rewrite = Rewrite::none;
  key.recompute = Recompute::none;
  key.skips.clear();
  if (setting.shape.synchronous) {
    key.schedule = "1f1b";
    if (key.widths.empty()) {
      key.stages = 1;
      key.cuts.clear();
    }
  }
  static std::map<std::string, OracleResult> known;
  const auto found = known.find(key.name());
  if (found != known.end()) return found->second;
  return known.emplace(key.name(), run_oracle(setting.model, *setting.loss, *setting.data, setting.oracle))
      .first->second;
}

Outcome run_rank(const Setting& setting, Transport& transport, const Mischief& mischief) {
  Outcome outcome;
  DelayedTransport delayed(transport, setting.pipeline.delay_seed);
  WorkerOptions options = setting.options;
  options.on_gradients = [&](std::int64_t step, int layer, const Tensors& gradients) {
    if (mischief.gradients) mischief.gradients(step, layer, gradients);
    Tensors& copies = outcome.gradients[{step, layer}];
    for (const at::Tensor& gradient : gradients)
      copies.push_back(gradient.to(at::kCPU, /*non_blocking=*/false, /*copy=*/true));
  };
  Worker worker(setting.model, *setting.loss, *setting.data, setting.stage_layers, setting.placement, delayed,
                options);
  if (setting.rehearses) {
    const std::string why = worker.rehearse(segments_to_rehearse(setting, transport.rank()));
    STAGECRAFT_CHECK(why.empty(), why);
  }
  std::map<const LoweredProgram*, RankProgramPtr> changed;
  const auto program_for = [&](const Segment& segment) {
    if (!mischief.program || segment.kind != SegmentKind::train)
      return setting.programs->of(setting, segment, transport.rank());
    const LoweredProgram& proved = setting.programs->of(setting, segment);
    RankProgramPtr& its = changed[&proved];
    if (its == nullptr) {
      LoweredProgram copy = proved;
      mischief.program(copy);
      its = rank_program(copy, transport.rank());
    }
    return its;
  };
  SegmentWalk walk(setting.shape);
  try {
    for (Segment segment; walk.next(segment);) {
      const RankProgramPtr program = program_for(segment);
      if (mischief.segment) mischief.segment(transport.rank(), segment);
      worker.run(program, segment, [&outcome, kind = segment.kind](const StepReport& report) {
        (kind == SegmentKind::train ? outcome.steps : outcome.validations).push_back(report);
      });
    }
    worker.settle();
  } catch (const std::exception& error) {
    transport.fail(error.what());  // as a run does, before anything is destroyed
    throw;
  }
  for (const int layer : worker.layers()) outcome.state[layer] = worker.state(layer);
  outcome.events = worker.events();
  outcome.graphs = worker.graph_counts();
  outcome.skipped_steps = worker.skipped_steps();
  return outcome;
}

std::string difference(const Outcome& outcome, const OracleResult& oracle, bool reports) {
  if (reports) {
    if (outcome.steps.size() != oracle.steps.size()) {
      return fmt::format("{} steps reported instead of {}", outcome.steps.size(), oracle.steps.size());
    }
    for (std::size_t i = 0; i < oracle.steps.size(); ++i) {
      const StepReport& got = outcome.steps[i];
      const OracleStep& want = oracle.steps[i];
      if (!same(got.terms, want.terms)) {
        return fmt::format("step {}: terms {}, the oracle has {}", i, fmt::join(got.terms, ", "),
                           fmt::join(want.terms, ", "));
      }
      if (got.step != static_cast<std::int64_t>(i) || !same(got.loss, want.loss) ||
          got.gradient_norm != want.gradient_norm || got.loss_scale != want.loss_scale ||
          got.skipped != want.skipped || got.learning_rate != want.learning_rate ||
          got.samples != want.samples) {
        return fmt::format(
            "step {}: loss {} norm {} rate {} samples {} skipped {}, the oracle has {} {} {} {} {}", i,
            got.loss, got.gradient_norm.value_or(-1), got.learning_rate, got.samples, got.skipped, want.loss,
            want.gradient_norm.value_or(-1), want.learning_rate, want.samples, want.skipped);
      }
    }
    if (outcome.validations.size() != oracle.validations.size()) return "validations are missing";
    for (std::size_t i = 0; i < oracle.validations.size(); ++i) {
      const StepReport& got = outcome.validations[i];
      const OracleValidation& want = oracle.validations[i];
      if (!same(got.terms, want.terms)) {
        return fmt::format("validation after {} steps: terms {}, the oracle has {}", got.step,
                           fmt::join(got.terms, ", "), fmt::join(want.terms, ", "));
      }
      if (got.step != want.after_steps || !same(got.loss, want.loss) || got.correct != want.correct) {
        return fmt::format("validation after {} steps: {} and {} right, the oracle has {} and {}", got.step,
                           got.loss, got.correct, want.loss, want.correct);
      }
    }
  }
  for (std::size_t step = 0; step < oracle.steps.size(); ++step) {
    for (const auto& [layer, state] : outcome.state) {  // frozen stages make no step
      const bool trained = !oracle.steps[step].gradients.at(static_cast<std::size_t>(layer)).empty();
      if (trained && !outcome.gradients.contains({static_cast<std::int64_t>(step), layer}))
        return "gradients are missing";
    }
  }
  for (const auto& [key, gradients] : outcome.gradients) {
    const auto [step, layer] = key;
    if (!same(gradients, oracle.steps.at(static_cast<std::size_t>(step)).gradients.at(layer))) {
      return fmt::format("gradients of layer {} differ at step {}", layer, step);
    }
  }
  for (const auto& [layer, state] : outcome.state) {
    if (!same(state.parameters, oracle.parameters[layer])) {
      return fmt::format("final weights of layer {} differ", layer);
    }
    if (!same(state.buffers, oracle.buffers[layer])) {
      return fmt::format("final buffers of layer {} differ", layer);
    }
    if (!same(state.optimizer, oracle.optimizer[layer])) {
      return fmt::format("final optimizer state of layer {} differs", layer);
    }
  }
  return "";
}

std::string difference(const std::vector<Outcome>& outcomes, const OracleResult& oracle) {
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    if (std::string text = difference(outcomes[rank], oracle, rank == 0); !text.empty()) return text;
  }
  return "";
}

std::string run_locally(const PipelineCase& pipeline, const Mischief& mischief) {
  const Setting setting(pipeline);
  const OracleResult& oracle = oracle_of(setting);
  const int world = setting.placement.world();
  std::vector<Outcome> outcomes(static_cast<std::size_t>(world));
  run_ranks(world, {.timeout = Seconds{60}, .synchronous_sends = true}, [&](Transport& transport) {
    outcomes[transport.rank().index()] = run_rank(setting, transport, mischief);
  });
  return difference(outcomes, oracle);
}

}  // namespace stagecraft::test
