#include "engine/core/worker.h"

#include "base/error.h"
#include "base/failure.h"
#include "engine/core/await_device.h"
#include "engine/core/deferred_norms.h"
#include "engine/core/deferred_reports.h"
#include "engine/core/device_feed.h"
#include "engine/core/executor.h"
#include "engine/core/finite.h"
#include "engine/core/overflow.h"
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
#include <fmt/ranges.h>

namespace stagecraft {

/// A data set as layer 0 reads it, whose batches are charged to the worker, though another thread reads them.
class ChargedDataset final : public Dataset {
 public:
  /// `pinned`: for copies to a device that nobody waits for.
  ChargedDataset(const Dataset& data, const Model& model, MemoryAccount& account, bool pinned)
      : data_(data), model_(model), account_(account), pinned_(pinned) {}
  std::int64_t size(Split split) const override { return data_.size(split); }
  SampleSpec sample() const override { return data_.sample(); }
  at::Tensor inputs(Split split, const std::vector<std::int64_t>& indices) const override {
    const ChargeTo charge(account_);
    return ready(model_.boundary_of(data_.inputs(split, indices)));
  }
  at::Tensor targets(Split split, const std::vector<std::int64_t>& indices) const override {
    const ChargeTo charge(account_);
    return ready(data_.targets(split, indices));
  }
  at::Tensor field(Split split, const std::string& name,
                   const std::vector<std::int64_t>& indices) const override {
    const ChargeTo charge(account_);
    return ready(data_.field(split, name, indices));
  }
  std::vector<LengthBucket> buckets(Split split) const override { return data_.buckets(split); }
  std::string fingerprint() const override { return data_.fingerprint(); }
  std::string summary() const override { return data_.summary(); }

 private:
  [[nodiscard]] at::Tensor ready(at::Tensor batch) const {
    return pinned_ ? batch.pin_memory() : std::move(batch);
  }

  const Dataset& data_;
  const Model& model_;
  MemoryAccount& account_;
  bool pinned_;
};

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

void check_shapes(const Tensors& have, const Tensors& given, const std::string& layer, const char* what) {
  if (have.size() != given.size()) {
    throw InputError(
        fmt::format("layer {} has {} {}, the state has {}", layer, have.size(), what, given.size()));
  }
  for (std::size_t i = 0; i < have.size(); ++i) {
    if (have[i].sizes() != given[i].sizes()) {
      throw InputError(fmt::format("layer {}: {} {} has shape [{}], the state [{}]", layer, what, i,
                                   fmt::join(have[i].sizes(), ", "), fmt::join(given[i].sizes(), ", ")));
    }
  }
}

void check_optimizer_state(const std::map<std::string, at::Tensor>& tensors,
                           const std::vector<StateSpec>& specs, const std::string& layer) {
  for (const auto& [key, tensor] : tensors) {
    const auto spec = std::find_if(specs.begin(), specs.end(),
                                   [&key = key](const StateSpec& known) { return known.name == key; });
    if (spec == specs.end()) {
      throw InputError(fmt::format("layer {}: the optimizer keeps no \"{}\", the state has one", layer, key));
    }
    if (tensor.sizes() == spec->shape) continue;
    throw InputError(fmt::format("layer {}: optimizer tensor {} has shape [{}], the state [{}]", layer, key,
                                 fmt::join(spec->shape, ", "), fmt::join(tensor.sizes(), ", ")));
  }
}

}  // namespace

/// The second one records what repeats.
constexpr int kRehearsals = 2;

struct Worker::Impl {
  const Model& model;
  const Loss& loss;
  const std::vector<std::pair<int, int>> stage_layers;
  Transport& transport;
  const WorkerOptions options;

  MemoryAccount account;
  ChargedDataset data;
  Recorder recorder;
  std::vector<Stage> stages;
  std::vector<int> parameter_counts;
  std::unique_ptr<Boundaries> boundaries;
  std::optional<c10::Stream> copies;  // that data goes to the device on; none: the device is the CPU
  BatchSources training_data, validation_data;
  std::optional<SampleOrder> training_order, validation_order;
  std::optional<UnitCounter> training_units, validation_units;
  std::optional<LossScale> loss_scale;
  DeferredNorms late_norms;
  DeferredReports late_reports;
  DeferredFiniteChecks deferred_checks;

  /// Of the segment that runs or ran last.
  struct Progress {
    std::int64_t first_step = 0;
    int groups = 0;
    UpdateCount updates{};
    std::vector<std::pair<at::Tensor, at::Tensor>>
        buffers{};  ///< those that forwards change, and copies from before
    std::optional<LossScaleState> loss_scale;
  } at;

  Impl(const Model& its_model, const Loss& its_loss, const Dataset& its_data,
       const std::vector<std::pair<int, int>>& layers, const Placement& placement, Transport& its_transport,
       WorkerOptions its_options)
      : model(its_model),
        loss(its_loss),
        stage_layers(layers),
        transport(its_transport),
        options(std::move(its_options)),
        data(its_data, its_model, account, options.device.is_cuda()),
        recorder(transport.rank(), options.record_steps, options.device),
        late_norms([this] { transport.progress(); }),
        late_reports([this] { transport.progress(); }),
        deferred_checks([this] { transport.progress(); }) {
    check_plan(model, stage_layers, placement, transport);
    if (options.fp16.enabled) loss_scale.emplace(options.fp16);
    const c10::InferenceMode no_autograd;
    const c10::DeviceGuard on_device(options.device);
    if (options.device.is_cuda()) {
      c10::getDeviceAllocator(options.device.type())->resetPeakStats(options.device.index());
    }
    if (!options.device.is_cpu()) {
      copies = c10::impl::VirtualGuardImpl(options.device.type()).getStreamFromGlobalPool(options.device);
    }
    const ChargeTo charge(account);
    for (const StageId id : placement.stages_of(transport.rank())) {
      const auto [first, last] = stage_layers[id.index()];
      stages.emplace_back(
          model, loss, id, first, last, options.seed, options.device, [this] { transport.progress(); },
          options.graphs);
    }
    for (const auto& [first, last] : stage_layers) {
      int count = 0;
      for (int layer = first; layer < last; ++layer) {
        count += static_cast<int>(model.layers[static_cast<std::size_t>(layer)]->parameters().size());
      }
      parameter_counts.push_back(count);
    }
    boundaries = std::make_unique<Boundaries>(model, stage_layers, placement, options.micro_batch_size,
                                              options.device, transport, options.poison_released_slots);
  }

  void begin(const Segment& segment) {
    const bool trains = segment.kind == SegmentKind::train;
    at = {.first_step = segment.first_step,
          .groups = trains ? static_cast<int>(segment.group_sizes.size()) : 0,
          .loss_scale = loss_scale ? std::optional(loss_scale->state()) : std::nullopt};
    if (!trains || !options.device.is_cpu()) return;
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
            .seed = options.seed,
            .shuffle = training && options.shuffle,
            .batch = options.batch_size,
            .inputs = false,
            .targets = false};
  }

  /// Of this rank's stages that load; made when first needed.
  const BatchSources& data_of(SegmentKind kind) {
    return add_data(kind == SegmentKind::train ? training_data : validation_data, kind);
  }

  const BatchSources& add_data(BatchSources& sources, SegmentKind kind, bool prompt = false) {
    for (const Stage& stage : stages) {
      const bool first = stage.id().value == 0;
      const bool last = stage.id().index() + 1 == stage_layers.size();
      LoaderOptions its = loading(kind);
      its.fields = model.fields_of(stage.first_layer(), stage.last_layer(), last ? &loss : nullptr);
      if ((!first && !last && its.fields.empty()) || sources.contains(stage.id())) continue;
      its.inputs = first;
      its.targets = last && loss.reads_targets();
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
    if (!loss.counts_units() || stages.back().id().index() + 1 != stage_layers.size()) return nullptr;
    std::optional<UnitCounter>& units = kind == SegmentKind::train ? training_units : validation_units;
    if (!units) {
      LoaderOptions its = loading(kind);
      its.fields = model.fields_of(0, 0, &loss);
      units.emplace(data, loss, std::move(its));
    }
    return &*units;
  }

  void announce(const BatchSources& sources, const LoweredProgram& program, const Segment& segment) const {
    for (const auto& [stage, source] : sources) {
      std::vector<MicroBatchRange> ranges;
      for (const Action& action : program.ranks.at(transport.rank().index())) {
        if (action.op != Op::load || action.stage != stage) continue;
        ranges.push_back(segment.micro_batches.at(action.micro_batch.index()));
      }
      source->announce(ranges);
    }
  }

  /// The layer is as the constructor made it.
  void begin_anew(int layer) {
    Stage& stage = stage_of(layer);
    stage.set_parameters(layer, initial_parameters(model, layer, options.seed, options.device));
    const Tensors buffers = initial_buffers(model, layer, options.device);
    for (std::size_t i = 0; i < buffers.size(); ++i) stage.buffers(layer)[i].copy_(buffers[i]);
    stage.optimizer_state(layer) = {};
  }

  /// All by this rank alone. Throws what run() does.
  void rehearse(const std::vector<Rehearsed>& segments);

  Stage& stage_of(int layer) {
    for (Stage& stage : stages) {
      if (stage.first_layer() <= layer && layer < stage.last_layer()) return stage;
    }
    throw InternalError(fmt::format("rank {} does not hold layer {}", transport.rank().value, layer));
  }
};

Worker::Worker(const Model& model, const Loss& loss, const Dataset& data,
               const std::vector<std::pair<int, int>>& stage_layers, const Placement& placement,
               Transport& transport, WorkerOptions options)
    : impl_(std::make_unique<Impl>(model, loss, data, stage_layers, placement, transport,
                                   std::move(options))) {}

Worker::~Worker() = default;

void Worker::read_ahead(const LoweredProgram& program, const Segment& segment) {
  impl_->announce(impl_->data_of(segment.kind), program, segment);
}

bool Worker::run(const LoweredProgram& program, const Segment& segment,
                 const std::function<void(const StepReport&)>& report, const std::function<bool()>& asked) {
  STAGECRAFT_CHECK(!asked || segment.kind == SegmentKind::validate, "half a training step is none");
  const c10::InferenceMode no_autograd;
  const c10::DeviceGuard on_device(impl_->options.device);
  impl_->begin(segment);  // copies of a few numbers, which are none of the program's
  const ChargeTo charge(impl_->account);
  read_ahead(program, segment);
  const ExecutorContext context{.model = impl_->model,
                                .stage_layers = impl_->stage_layers,
                                .loss = impl_->loss,
                                .parameter_counts = impl_->parameter_counts,
                                .stages = impl_->stages,
                                .boundaries = *impl_->boundaries,
                                .data = impl_->data_of(segment.kind),
                                .order = impl_->order_of_samples(segment.kind),
                                .units = impl_->units_of(segment.kind),
                                .recorder = impl_->recorder,
                                .transport = impl_->transport,
                                .options = impl_->options,
                                .late_norms = impl_->late_norms,
                                .late_reports = impl_->late_reports,
                                .deferred_checks = impl_->deferred_checks,
                                .loss_scale = impl_->loss_scale ? &*impl_->loss_scale : nullptr,
                                .updates = impl_->at.updates};
  return Executor(context, program, segment, report, asked).run();
}

void Worker::Impl::rehearse(const std::vector<Rehearsed>& segments) {
  const Placement& placement = segments.front().first->placement;
  std::vector<std::size_t> gathered(static_cast<std::size_t>(transport.world()), 0);
  for (std::size_t stage = 0; stage < parameter_counts.size(); ++stage) {
    gathered[placement.ranks[stage].front().index()] += static_cast<std::size_t>(parameter_counts[stage]);
  }
  transport::AloneTransport alone(transport, std::move(gathered));
  Boundaries its_boundaries(model, stage_layers, placement, options.micro_batch_size, options.device, alone,
                            options.poison_released_slots);
  WorkerOptions its_options = options;
  its_options.on_gradients = nullptr;
  std::map<SegmentKind, BatchSources> sources;
  Recorder recorder_off(transport.rank(), 0, options.device);
  DeferredReports reports([this] { transport.progress(); });
  DeferredFiniteChecks checks([this] { transport.progress(); });
  DeferredNorms norms([this] { transport.progress(); });
  std::optional<LossScale> scale = loss_scale;
  UpdateCount updates;
  const auto carry_out = [&](const LoweredProgram& program, const Segment& segment) {
    const BatchSources& data_of_kind = add_data(sources[segment.kind], segment.kind, /*prompt=*/true);
    announce(data_of_kind, program, segment);
    const ExecutorContext context{.model = model,
                                  .stage_layers = stage_layers,
                                  .loss = loss,
                                  .parameter_counts = parameter_counts,
                                  .stages = stages,
                                  .boundaries = its_boundaries,
                                  .data = data_of_kind,
                                  .order = order_of_samples(segment.kind),
                                  .units = units_of(segment.kind),
                                  .recorder = recorder_off,
                                  .transport = alone,
                                  .options = its_options,
                                  .late_norms = norms,
                                  .late_reports = reports,
                                  .deferred_checks = checks,
                                  .loss_scale = scale ? &*scale : nullptr,
                                  .updates = updates};
    const std::function<void(const StepReport&)> nobody_hears = [](const StepReport&) {};
    Executor executor(context, program, segment, nobody_hears, nullptr);
    STAGECRAFT_CHECK(executor.run(), "a rehearsal is left by nobody");
  };
  for (const auto& [program, segment] : segments) {
    for (int time = 0; time < kRehearsals; ++time) carry_out(*program, segment);
  }
  norms.hear_all();
  checks.look_at_all();
  reports.deliver_all();
}

std::string Worker::rehearse(const std::vector<Rehearsed>& segments) {
  STAGECRAFT_CHECK(!impl_->options.device.is_cpu() && !segments.empty(),
                   "a device has something to rehearse");
  const c10::InferenceMode no_autograd;
  const c10::DeviceGuard on_device(impl_->options.device);
  const ChargeTo charge(impl_->account);
  std::string why;
  try {
    impl_->rehearse(segments);
  } catch (const PeerError&) {
    throw;
  } catch (...) {
    why = failure_of(without_stack(std::current_exception(), "the rehearsal")).message;
  }
  for (Stage& stage : impl_->stages) stage.forget_work();
  for (const int layer : layers()) impl_->begin_anew(layer);
  await_device(mark_of(impl_->options.device), [this] { impl_->transport.progress(); });
  return why;
}

std::optional<std::int64_t> Worker::whole_state() {
  Impl::Progress& at = impl_->at;
  if (!impl_->options.device.is_cpu()) return std::nullopt;
  const int all = at.groups * static_cast<int>(impl_->stages.size());
  if (at.updates.begun == all && at.updates.made == all) return at.first_step + at.groups;
  if (at.updates.begun > 0) return std::nullopt;
  const c10::InferenceMode no_autograd;
  for (auto& [buffer, before] : at.buffers) buffer.copy_(before);
  if (impl_->loss_scale && at.loss_scale) impl_->loss_scale->set_state(*at.loss_scale);
  return at.first_step;
}

void Worker::settle() {
  impl_->deferred_checks.look_at_all();
  impl_->late_norms.hear_all();
  impl_->late_reports.deliver_all();
  const at::Device device = impl_->options.device;
  if (!device.is_cpu()) await_device(mark_of(device), [this] { impl_->transport.progress(); });
}

std::vector<int> Worker::layers() const {
  std::vector<int> layers;
  for (const Stage& stage : impl_->stages) {
    for (int layer = stage.first_layer(); layer < stage.last_layer(); ++layer) layers.push_back(layer);
  }
  return layers;
}

LayerState Worker::state(int layer) const {
  Stage& stage = impl_->stage_of(layer);
  LayerState state{stage.parameters(layer), stage.buffers(layer), stage.optimizer_state(layer)};
  for (at::Tensor& parameter : state.parameters) parameter = parameter.cpu();
  for (at::Tensor& buffer : state.buffers) buffer = buffer.cpu();
  for (auto& tensors : state.optimizer.tensors) {
    for (auto& [key, tensor] : tensors) tensor = tensor.cpu();
  }
  return state;
}

void Worker::set_state(int layer, LayerState state) {
  const c10::InferenceMode no_autograd;
  const c10::DeviceGuard on_device(impl_->options.device);
  const ChargeTo charge(impl_->account);
  Stage& stage = impl_->stage_of(layer);
  const std::string& name = impl_->model.layers[static_cast<std::size_t>(layer)]->name();
  const Tensors& parameters = stage.parameters(layer);
  check_shapes(parameters, state.parameters, name, "parameters");
  check_shapes(stage.buffers(layer), state.buffers, name, "buffers");
  if (!state.optimizer.tensors.empty() && state.optimizer.tensors.size() != parameters.size()) {
    throw InputError(fmt::format("layer {} has {} parameters, its optimizer state {}", name,
                                 parameters.size(), state.optimizer.tensors.size()));
  }
  for (std::size_t i = 0; i < state.optimizer.tensors.size(); ++i) {
    check_optimizer_state(state.optimizer.tensors[i], impl_->options.optimizer->state_of(layer, i), name);
  }
  stage.set_parameters(layer, state.parameters);
  for (std::size_t i = 0; i < state.buffers.size(); ++i) stage.buffers(layer)[i].copy_(state.buffers[i]);
  OptimizerState own;
  own.steps = state.optimizer.steps;
  for (const auto& tensors : state.optimizer.tensors) {
    auto& copies = own.tensors.emplace_back();
    for (const auto& [key, tensor] : tensors)
      copies[key] = tensor.to(impl_->options.device, /*non_blocking=*/false, /*copy=*/true);
  }
  stage.optimizer_state(layer) = std::move(own);
}

std::optional<LossScaleState> Worker::loss_scale() const {
  return impl_->loss_scale ? std::optional(impl_->loss_scale->state()) : std::nullopt;
}

void Worker::set_loss_scale(const LossScaleState& state) {
  if (impl_->loss_scale) impl_->loss_scale->set_state(state);
}

std::string Worker::not_finite() const {
  const c10::InferenceMode no_autograd;
  const c10::DeviceGuard on_device(impl_->options.device);
  for (const int index : layers()) {
    const Layer& layer = *impl_->model.layers[static_cast<std::size_t>(index)];
    const std::vector<ParameterSpec> parameters = layer.parameters();
    Stage& stage = impl_->stage_of(index);
    std::vector<std::string> names;
    Tensors tensors = stage.parameters(index);
    for (const ParameterSpec& parameter : parameters) names.push_back(parameter.name);
    // Statistics of the data; a table may well hold infinities, as masks do.
    const std::vector<BufferSpec> buffers = layer.buffers();
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      if (buffers[i].over_replicas != OverReplicas::mean) continue;
      const at::Tensor& buffer = stage.buffers(index)[i];
      tensors.push_back(buffer.element_size() < 4 ? buffer.to(at::kFloat) : buffer);
      names.push_back(buffers[i].name);
    }
    const OptimizerState& optimizer = stage.optimizer_state(index);
    for (std::size_t i = 0; i < optimizer.tensors.size(); ++i) {
      for (const auto& [name, tensor] : optimizer.tensors[i]) {
        tensors.push_back(tensor);
        names.push_back(fmt::format("{} of {}", name, parameters[i].name));
      }
    }
    if (const auto at = last_not_finite(tensors)) {  // a device is waited for once per layer
      return fmt::format("{} in {}", names[*at], layer_words(impl_->model, impl_->stage_layers, index));
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

const std::vector<Event>& Worker::events() const { return impl_->recorder.events(); }

Seconds Worker::clock_origin() const { return impl_->recorder.origin(); }
Bytes Worker::peak_bytes() const {
  const at::Device device = impl_->options.device;
  if (!device.is_cuda()) return impl_->account.peak();
  const auto stats = c10::getDeviceAllocator(device.type())->getDeviceStats(device.index());
  return Bytes{stats.requested_bytes.front().peak};  // of all pools together
}

std::optional<CardMemory> Worker::card_memory() const {
  const at::Device device = impl_->options.device;
  if (!device.is_cuda()) return std::nullopt;
  const auto stats = c10::getDeviceAllocator(device.type())->getDeviceStats(device.index());
  const DeviceMemory card = device_memory(device.index());
  return CardMemory{.reserved = Bytes{stats.reserved_bytes.front().peak},
                    .used = card.total - card.available,
                    .total = card.total};
}

}  // namespace stagecraft
