#include "engine/core/worker.h"

#include "base/error.h"
#include "base/failure.h"
#include "engine/core/await_device.h"
#include "engine/core/charged_dataset.h"
#include "engine/core/device_feed.h"
#include "engine/core/executor.h"
#include "engine/core/layer_state.h"
#include "engine/core/overflow.h"
#include "engine/core/rank_program.h"
#include "engine/core/run_state.h"
#include "engine/core/staged_model.h"
#include "engine/device/accelerators.h"
#include "engine/transport/alone.h"
#include "models/tensors/counting_allocator.h"
#include "models/tensors/device_mark.h"
#include "models/tensors/libtorch_error.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

namespace stagecraft {

namespace {

void check_plan(const Model& model, const std::vector<std::pair<int, int>>& stage_layers,
                const Placement& placement, const Transport& transport) {
  STAGECRAFT_CHECK(stage_layers.size() == placement.ranks.size(), "one range of layers per stage");
  int next = 0;
  for (const auto& [first, last] : stage_layers) {
    STAGECRAFT_CHECK(first == next && last > first,
                     fmt::format("a stage of layers [{}, {}) after layer {}", first, last, next));
    next = last;
  }
  STAGECRAFT_CHECK(next == static_cast<int>(model.layers.size()), "the stages hold every layer");
  if (placement.world() != transport.world()) {
    throw InputError(
        fmt::format("the plan is for {} ranks, there are {}", placement.world(), transport.world()));
  }
}

/// Throws as check_plan does.
StagedModel staged_as_planned(const Model& model, const Loss& loss,
                              const std::vector<std::pair<int, int>>& stage_layers,
                              const Placement& placement, const Transport& transport) {
  check_plan(model, stage_layers, placement, transport);
  return staged(model, loss, stage_layers);
}

}  // namespace

/// The second one records what repeats.
constexpr int kRehearsals = 2;

struct Worker::Impl {
  const StagedModel model;
  MemoryAccount account;
  ChargedDataset data;
  std::vector<Stage> stages;          ///< of this rank, ascending
  RunState own;                       ///< the run's; it refers to the stages
  std::optional<c10::Stream> copies;  // that data goes to the device on; none: the device is the CPU
  std::optional<SampleOrder> training_order, validation_order;
  std::optional<UnitCounter> training_units, validation_units;

  std::map<std::pair<int, std::size_t>, std::string> brought;  ///< hashes, by layer and buffer

  /// Of the segment that runs or ran last.
  struct Progress {
    std::int64_t first_step = 0;
    int groups = 0;
    std::vector<std::pair<at::Tensor, at::Tensor>>
        buffers{};  ///< those that forwards change, and copies from before
    std::optional<LossScaleState> loss_scale;
    bool over = false;  ///< the segment was carried out
  } at;

  Impl(const Model& its_model, const Loss& its_loss, const Dataset& its_data,
       const std::vector<std::pair<int, int>>& layers, const Placement& placement, Transport& transport,
       WorkerOptions options)
      : model(staged_as_planned(its_model, its_loss, layers, placement, transport)),
        data(its_data, its_model, account, options.device.is_cuda()),
        stages(make_stages(placement, transport, options)),
        own(model, stages, placement, transport, options,
            options.fp16.enabled ? std::optional(LossScale(options.fp16)) : std::nullopt) {
    if (!options.device.is_cpu()) {
      copies = c10::impl::VirtualGuardImpl(options.device.type()).getStreamFromGlobalPool(options.device);
    }
  }

  /// At their initial weights, whose memory is charged to the worker.
  std::vector<Stage> make_stages(const Placement& placement, Transport& transport,
                                 const WorkerOptions& options) {
    const c10::InferenceMode no_autograd;
    const c10::DeviceGuard on_device(options.device);
    if (options.device.is_cuda()) {
      c10::getDeviceAllocator(options.device.type())->resetPeakStats(options.device.index());
    }
    const ChargeTo charge(account);
    std::vector<Stage> made;
    for (const StageId id : placement.stages_of(transport.rank())) {
      const auto [first, last] = model.stage_layers[id.index()];
      made.emplace_back(
          model.model, model.loss, id, first, last, options.seed, options.device,
          [&transport] { transport.progress(); }, options.graphs);
    }
    return made;
  }

  [[nodiscard]] const WorkerOptions& options() const { return own.options; }
  [[nodiscard]] Transport& transport() const { return own.transport; }

  void begin(const Segment& segment) {
    const bool trains = segment.kind == SegmentKind::train;
    const LossScale* const scale = own.gate.loss_scale();
    own.updates = {};
    at = {.first_step = segment.first_step,
          .groups = trains ? static_cast<int>(segment.group_sizes.size()) : 0,
          .loss_scale = scale != nullptr ? std::optional(scale->state()) : std::nullopt};
    // A segment that fails before its first update can be taken back (whole_state): forwards have changed
    // nothing but these. A device's weights are not saved then, so there is nothing to take back.
    if (!trains || !options().device.is_cpu()) return;
    for (Stage& stage : stages) {
      for (int layer = stage.first_layer(); layer < stage.last_layer(); ++layer) {
        for (const OverReplicas rule : {OverReplicas::mean, OverReplicas::first}) {
          for (const at::Tensor& buffer : stage.buffers(layer, rule))
            at.buffers.emplace_back(buffer, buffer.clone());
        }
      }
    }
  }

  [[nodiscard]] LoaderOptions loading(SegmentKind kind) const {
    const bool training = kind == SegmentKind::train;
    return {.split = training ? Split::train : Split::validation,
            .seed = options().seed,
            .shuffle = training && options().shuffle,
            .batch = options().batch_size,
            .inputs = false,
            .targets = false};
  }

  /// Of this rank's stages that load; made when first needed, by the run or by a rehearsal. `prompt`: as a
  /// DeviceFeed has it.
  const BatchSources& data_of(RunState& run, SegmentKind kind, bool prompt = false) {
    const auto [entry, fresh] = run.data.try_emplace(kind);
    BatchSources& sources = entry->second;
    if (!fresh) return sources;
    for (const Stage& stage : stages) {
      const bool first = stage.id().value == 0;
      const bool last = stage.id().index() + 1 == model.stage_layers.size();
      LoaderOptions its = loading(kind);
      its.fields =
          model.model.fields_of(stage.first_layer(), stage.last_layer(), last ? &model.loss : nullptr);
      if (!first && !last && its.fields.empty()) continue;
      its.inputs = first;
      its.targets = last && model.loss.reads_targets();
      its.short_reads_in_take = options().short_reads_in_take && !copies;  // a device is fed ahead
      auto loader = std::make_unique<Loader>(data, std::move(its));
      std::unique_ptr<BatchSource>& source = sources[stage.id()];
      if (copies) {
        source = std::make_unique<DeviceFeed>(std::move(loader), *copies, prompt);
      } else {
        source = std::move(loader);
      }
    }
    return sources;
  }

  const SampleOrder& order_of_samples(SegmentKind kind) {
    std::optional<SampleOrder>& order = kind == SegmentKind::train ? training_order : validation_order;
    if (!order) order.emplace(order_of(data, loading(kind)));
    return *order;
  }

  /// Null where samples weigh alike, or another rank computes the loss.
  const UnitCounter* units_of(SegmentKind kind) {
    if (!model.loss.counts_units() || stages.back().id().index() + 1 != model.stage_layers.size())
      return nullptr;
    std::optional<UnitCounter>& units = kind == SegmentKind::train ? training_units : validation_units;
    if (!units) {
      LoaderOptions its = loading(kind);
      its.fields = model.model.fields_of(0, 0, &model.loss);
      units.emplace(data, model.loss, std::move(its));
    }
    return &*units;
  }

  static void announce(const BatchSources& sources, const RankProgram& program, const Segment& segment) {
    for (const StageFacts& stage : program.stages) {
      const auto source = sources.find(stage.id);
      if (source == sources.end()) continue;
      std::vector<MicroBatchRange> ranges;
      ranges.reserve(stage.loaded.size());
      for (const MicroBatch mb : stage.loaded) ranges.push_back(segment.micro_batches.at(mb.index()));
      source->second->announce(ranges);
    }
  }

  /// Of the run, or of a rehearsal.
  bool carry_out(RunState& run, const RankProgramPtr& program, const Segment& segment,
                 const std::function<void(const StepReport&)>& report, const std::function<bool()>& asked,
                 bool prompt = false) {
    const BatchSources& sources = data_of(run, segment.kind, prompt);
    announce(sources, *program, segment);  // what was read ahead already is not read twice
    const ExecutorContext context{.model = model,
                                  .stages = stages,
                                  .run = run,
                                  .data = sources,
                                  .order = order_of_samples(segment.kind),
                                  .units = units_of(segment.kind)};
    const bool whole = Executor(context, program, segment, report, asked).run();
    at.over = whole;
    return whole;
  }

  /// The layer is as the constructor made it.
  void begin_anew(int layer) {
    Stage& stage = stage_of(layer);
    stage.set_parameters(layer, initial_parameters(model.model, layer, options().seed, options().device));
    const Tensors buffers = initial_buffers(model.model, layer, options().device);
    for (std::size_t i = 0; i < buffers.size(); ++i) stage.buffers(layer)[i].copy_(buffers[i]);
    stage.optimizer_state(layer) = {};
  }

  /// All by this rank alone. Throws what run() does.
  void rehearse(const std::vector<Rehearsed>& segments);

  Stage& stage_of(int layer) {
    for (Stage& stage : stages) {
      if (stage.first_layer() <= layer && layer < stage.last_layer()) return stage;
    }
    throw InternalError(fmt::format("rank {} does not hold layer {}", transport().rank().value, layer));
  }
};

Worker::Worker(const Model& model, const Loss& loss, const Dataset& data,
               const std::vector<std::pair<int, int>>& stage_layers, const Placement& placement,
               Transport& transport, WorkerOptions options)
    : impl_(std::make_unique<Impl>(model, loss, data, stage_layers, placement, transport,
                                   std::move(options))) {}

Worker::~Worker() = default;

void Worker::read_ahead(const RankProgramPtr& program, const Segment& segment) {
  Impl::announce(impl_->data_of(impl_->own, segment.kind), *program, segment);
}

bool Worker::run(const RankProgramPtr& program, const Segment& segment,
                 const std::function<void(const StepReport&)>& report, const std::function<bool()>& asked) {
  STAGECRAFT_CHECK(!asked || segment.kind == SegmentKind::validate, "half a training step is none");
  const c10::InferenceMode no_autograd;
  const c10::DeviceGuard on_device(impl_->options().device);
  impl_->begin(segment);  // copies of a few numbers, which are none of the program's
  const ChargeTo charge(impl_->account);
  return impl_->carry_out(impl_->own, program, segment, report, asked);
}

void Worker::Impl::rehearse(const std::vector<Rehearsed>& segments) {
  const Placement& placement = segments.front().first->header.placement;
  std::vector<std::size_t> gathered(static_cast<std::size_t>(transport().world()), 0);
  for (std::size_t stage = 0; stage < model.parameter_counts.size(); ++stage) {
    gathered[placement.ranks[stage].front().index()] +=
        static_cast<std::size_t>(model.parameter_counts[stage]);
  }
  transport::AloneTransport alone(transport(), std::move(gathered));
  WorkerOptions its_options = options();
  its_options.on_gradients = nullptr;
  its_options.record_steps = 0;
  const LossScale* const scale = own.gate.loss_scale();
  RunState rehearsed(model, stages, placement, alone, std::move(its_options),
                     scale != nullptr ? std::optional(*scale) : std::nullopt);
  const std::function<void(const StepReport&)> nobody_hears = [](const StepReport&) {};
  for (const auto& [program, segment] : segments) {
    for (int time = 0; time < kRehearsals; ++time) {
      STAGECRAFT_CHECK(carry_out(rehearsed, program, segment, nobody_hears, nullptr, /*prompt=*/true),
                       "a rehearsal is left by nobody");
    }
  }
  rehearsed.settle();
}

std::string Worker::rehearse(const std::vector<Rehearsed>& segments) {
  STAGECRAFT_CHECK(!impl_->options().device.is_cpu() && !segments.empty(),
                   "a device has something to rehearse");
  const c10::InferenceMode no_autograd;
  const c10::DeviceGuard on_device(impl_->options().device);
  const ChargeTo charge(impl_->account);
  std::string why;
  try {
    impl_->rehearse(segments);
  } catch (const PeerError&) {
    throw;
  } catch (...) {
    why = failure_of(without_stack(std::current_exception(), "the rehearsal")).message;
  }
  // The state goes back to the initial one, but not the memory that the rehearsal took: that is what it was
  // for.
  for (Stage& stage : impl_->stages) stage.forget_work();
  for (const int layer : layers()) impl_->begin_anew(layer);
  await_device(mark_of(impl_->options().device), [this] { impl_->transport().progress(); });
  return why;
}

std::optional<std::int64_t> Worker::whole_state() {
  Impl::Progress& at = impl_->at;
  const UpdateCount& updates = impl_->own.updates;
  if (!impl_->options().device.is_cpu()) return std::nullopt;
  // An update that was begun and not made has left some of its stage's weights as before and others as behind
  // it; one that was made on one stage and not on another has left two steps' weights. Only all or none of
  // them are a state.
  const auto stepped = std::count_if(impl_->stages.begin(), impl_->stages.end(),
                                     [](const Stage& stage) { return !stage.frozen(); });
  const int all = at.groups * static_cast<int>(stepped);
  // Frozen stages alone make no update: their state is that behind the segment when they are through it.
  const bool made = stepped > 0 ? updates.begun == all && updates.made == all : at.over;
  if (made) return at.first_step + at.groups;
  if (updates.begun > 0) return std::nullopt;
  const c10::InferenceMode no_autograd;
  for (auto& [buffer, before] : at.buffers) buffer.copy_(before);
  if (at.loss_scale) set_loss_scale(*at.loss_scale);
  return at.first_step;
}

void Worker::settle() {
  impl_->own.settle();
  const at::Device device = impl_->options().device;
  if (!device.is_cpu()) await_device(mark_of(device), [this] { impl_->transport().progress(); });
}

std::vector<int> Worker::layers() const {
  std::vector<int> layers;
  for (const Stage& stage : impl_->stages) {
    for (int layer = stage.first_layer(); layer < stage.last_layer(); ++layer) layers.push_back(layer);
  }
  return layers;
}

std::string Worker::hash_of_brought(int layer, std::size_t buffer) const {
  std::string& hash = impl_->brought[{layer, buffer}];
  if (hash.empty()) hash = hash_of(impl_->stage_of(layer).buffers(layer).at(buffer));
  return hash;
}

LayerState Worker::state(int layer, bool brought) const {
  const Layer& its = *impl_->model.model.layers[static_cast<std::size_t>(layer)];
  return layer_state_of(impl_->stage_of(layer), layer, its, brought);
}

void Worker::set_state(int layer, LayerState state) {
  const ChargeTo charge(impl_->account);
  const Layer& its = *impl_->model.model.layers[static_cast<std::size_t>(layer)];
  for (std::size_t i = 0; i < state.buffers.size(); ++i) {
    if (state.buffers[i].defined()) impl_->brought.erase({layer, i});
  }
  set_layer_state(impl_->stage_of(layer), layer, its, impl_->options(), std::move(state));
}

std::optional<LossScaleState> Worker::loss_scale() const {
  const LossScale* const scale = impl_->own.gate.loss_scale();
  return scale != nullptr ? std::optional(scale->state()) : std::nullopt;
}

void Worker::set_loss_scale(const LossScaleState& state) {
  if (LossScale* const scale = impl_->own.gate.loss_scale()) scale->set_state(state);
}

std::string Worker::not_finite() const {
  const c10::DeviceGuard on_device(impl_->options().device);
  for (const int layer : layers()) {
    const Layer& its = *impl_->model.model.layers[static_cast<std::size_t>(layer)];
    if (const std::string what = not_finite_in(impl_->stage_of(layer), layer, its); !what.empty()) {
      return fmt::format("{} in {}", what, layer_words(impl_->model.model, impl_->model.stage_layers, layer));
    }
  }
  return "";
}

std::int64_t Worker::skipped_steps() const {
  std::int64_t most = 0;
  for (const Stage& stage : impl_->stages) most = std::max(most, stage.skipped_steps());
  return most;
}

GraphCounts Worker::graph_counts() const {
  GraphCounts all;
  for (const Stage& stage : impl_->stages) {
    const GraphCounts counts = stage.graph_counts();
    all.recorded += counts.recorded;
    all.repeated += counts.repeated;
    all.plain += counts.plain;
    all.crowded += counts.crowded;
    if (all.refusal.empty()) all.refusal = counts.refusal;
  }
  return all;
}

const std::vector<Event>& Worker::events() const { return impl_->own.recorder.events(); }

Seconds Worker::clock_origin() const { return impl_->own.recorder.origin(); }
std::optional<double> Worker::core_share() const { return impl_->own.core_share.share(); }
Bytes Worker::peak_bytes() const {
  const at::Device device = impl_->options().device;
  if (!device.is_cuda()) return impl_->account.peak();
  const auto stats = c10::getDeviceAllocator(device.type())->getDeviceStats(device.index());
  return Bytes{stats.requested_bytes.front().peak};  // of all pools together
}

std::optional<CardMemory> Worker::card_memory() const {
  const at::Device device = impl_->options().device;
  if (!device.is_cuda()) return std::nullopt;
  const auto stats = c10::getDeviceAllocator(device.type())->getDeviceStats(device.index());
  const DeviceMemory card = device_memory(device.index());
  return CardMemory{.reserved = Bytes{stats.reserved_bytes.front().peak},
                    .used = card.total - card.available,
                    .total = card.total};
}

}  // namespace stagecraft
