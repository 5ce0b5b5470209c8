#include "profiler/layer_profiler.h"

#include "base/core_share.h"
#include "base/error.h"
#include "models/tensors/counting_allocator.h"
#include "profiler/device_stopwatch.h"
#include "profiler/layer_classes.h"
#include "profiler/layer_memory.h"
#include "profiler/memory_meter.h"
#include "profiler/recorded_chain.h"
#include "profiler/statistics.h"
#include "profiler/tied_weights.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <exception>
#include <memory>
#include <utility>

namespace stagecraft {

namespace {

constexpr int kFewestRepeats = 3;
constexpr std::size_t kInFlight = 2;
constexpr Bytes kScalars{64};  // which an update makes on its way

using Clock = std::chrono::steady_clock;

Seconds since(Clock::time_point begin) {
  return Seconds{std::chrono::duration<double>(Clock::now() - begin).count()};
}

/// Times of one row, one entry a repeat.
struct Samples {
  std::vector<Seconds> forward, backward_input, backward_weight, step;
  /// Of the last update, above what was live before it: the first one makes the optimizer's state as well.
  Bytes step_peak;
};

/// Drives micro-batches through a chain in the order of a pipeline's last but one stage: forward of the next
/// one, then backward of the one before.
class TimedPasses {
 public:
  /// `recorded`, of as many slots: what is started in place of the chain's work; null: nothing was recorded.
  TimedPasses(Chain& chain, RecordedChain* recorded, std::vector<ChainInput> data,
              const Chain::Update& update)
      : chain_(chain),
        recorded_(recorded),
        data_(std::move(data)),
        update_(update),
        stopwatch_(chain.device()),
        samples_(static_cast<std::size_t>(chain.rows())) {
    forward();
  }

  void repeat() {
    forward();
    backward();
    stopwatch_.settle();
  }
  void update() {
    for (int row = 0; update_ && row < chain_.rows(); ++row) {
      if (!chain_.has_weights(row)) continue;
      const MemoryMeter meter(chain_.device());
      timed(row, &Samples::step, [&] { chain_.update(row, update_); });
      samples_[static_cast<std::size_t>(row)].step_peak = meter.peak();
    }
    chain_.clear_gradients();
    stopwatch_.settle();
  }
  void forget() { samples_.assign(samples_.size(), {}); }
  [[nodiscard]] const std::vector<Samples>& samples() const { return samples_; }
  [[nodiscard]] int repeats() const { return static_cast<int>(samples_.front().forward.size()); }

 private:
  template <class Work>
  void timed(int row, std::vector<Seconds> Samples::*kind, const Work& work) {
    stopwatch_.time(work, samples_[static_cast<std::size_t>(row)].*kind);
  }

  void forward() {
    const std::size_t slot = next_ % kInFlight;
    Bundle bundle;
    if (recorded_ == nullptr) bundle = chain_.begin(data_[slot], works_[slot]);
    for (int row = 0; row < chain_.rows(); ++row) {
      if (!chain_.runs(row)) continue;
      timed(row, &Samples::forward, [&] {
        if (recorded_ != nullptr) return recorded_->forward(slot, row);
        bundle = chain_.forward(row, bundle, works_[slot], next_);
      });
    }
    ++next_;
  }

  void backward() {
    const std::size_t slot = next_ % kInFlight;  // the older one
    ChainWork& work = works_[slot];
    Bundle gradients;
    for (int row = chain_.rows() - 1; row >= 0; --row) {
      if (!chain_.runs(row) || chain_.frozen(row)) continue;
      timed(row, &Samples::backward_input, [&] {
        if (recorded_ != nullptr) return recorded_->backward_input(slot, row);
        gradients = chain_.backward_input(row, gradients, work);
      });
      if (chain_.has_weights(row)) {
        timed(row, &Samples::backward_weight, [&] {
          if (recorded_ != nullptr) return recorded_->backward_weight(slot, row);
          chain_.backward_weight(row, work);
        });
      }
      if (recorded_ == nullptr) work.kept[static_cast<std::size_t>(row)].clear();
    }
  }

  Chain& chain_;
  RecordedChain* recorded_;
  std::vector<ChainInput> data_;
  const Chain::Update& update_;
  DeviceStopwatch stopwatch_;
  std::array<ChainWork, kInFlight> works_;
  std::size_t next_ = 0;
  std::vector<Samples> samples_;
};

/// Why a run records no stage with some of the layers: "layer "x" is not recorded"; "" where all may be.
std::string not_recorded(const Model& model) {
  const auto found =
      std::ranges::find_if(model.layers, [](const LayerPtr& layer) { return !layer->facts().repeats; });
  return found == model.layers.end() ? "" : fmt::format("layer \"{}\" is never recorded", (*found)->name());
}

/// Recordings of the chain, or null and why the device makes none.
std::unique_ptr<RecordedChain> record(Chain& chain, const std::vector<ChainInput>& data,
                                      const ProfileRequest& request, std::string& refusal) {
  if (request.graphs == nullptr || !refusal.empty()) return nullptr;
  try {
    return std::make_unique<RecordedChain>(chain, data, request.graphs);
  } catch (const std::exception& error) {  // what is wrong with a layer, it will say again
    refusal = error.what();
    return nullptr;
  }
}

/// Returns how many repeats there were time for.
int measure_times(Chain& chain, RecordedChain* recorded, const std::vector<ChainInput>& data,
                  const ProfileRequest& request, std::vector<LayerProfile>& layers, CoreShare& core_share) {
  chain.clear_gradients();  // of the passes before
  TimedPasses passes(chain, recorded, data, request.update);
  const Clock::time_point begin = Clock::now();
  const auto pass = [&](int index) {
    passes.repeat();
    if (index % request.passes_per_update == 0) passes.update();
  };
  for (int i = 0; i == 0 || since(begin) < request.warmup; ++i) pass(i);
  passes.forget();
  const Clock::time_point begin_measured = Clock::now();
  for (int i = 0; i < request.repeats; ++i) {
    if (i >= kFewestRepeats && since(begin_measured) > request.budget) break;
    const CoreShare::Begin work = CoreShare::begin();
    pass(i);
    core_share.add(work);
  }
  for (std::size_t row = 0; row < layers.size(); ++row) {
    const Samples& samples = passes.samples()[row];
    layers[row].forward = timing_of(samples.forward);
    layers[row].backward_input = timing_of(samples.backward_input);
    layers[row].backward_weight = timing_of(samples.backward_weight);
    layers[row].step = timing_of(samples.step);
    if (samples.step_peak > kScalars) layers[row].step_transient = samples.step_peak;
  }
  return passes.repeats();
}

std::string times_of(const ProfileRequest& request, const std::string& refusal) {
  if (request.graphs == nullptr) return "launched operators";
  return refusal.empty() ? "recordings" : "launched operators: " + refusal;
}

Profile measured_profile(const Model& model, const Loss& loss, const ProfileRequest& request) {
  const c10::InferenceMode no_autograd;
  Profile profile;
  profile.model = model.name;
  profile.model_fingerprint = model.fingerprint;
  profile.ties = tied_weights(model);
  if (const std::int64_t tokens = model.sample.tokens({1}); tokens > 0) profile.tokens_per_sample = tokens;
  if (const std::int64_t work = model.multiply_adds(); work > 0) profile.multiply_adds_per_sample = work;
  profile.dtype = model.precision.name();
  profile.repeats = request.repeats;
  profile.optimizer = request.optimizer;
  profile.optimizer_bytes_per_parameter_byte = request.optimizer_bytes_per_parameter_byte;
  const c10::DeviceGuard on_device(request.device);
  const LayerClasses classes = layer_classes(model, request.representatives);
  Chain chain(model, loss, request.seed, request.device, classes.left_out);
  std::string refusal = not_recorded(model);
  CoreShare core_share;
  for (const std::int64_t size : request.micro_batch_sizes) {
    std::vector<ChainInput> data;
    for (std::size_t i = 0; i < kInFlight; ++i) data.push_back(request.data(size, static_cast<int>(i)));
    Measurement measurement;
    measurement.micro_batch = size;
    measurement.input = Bytes{boundaries(model, size).front().bytes()};
    const Bytes read{static_cast<std::int64_t>(data[0].inputs.nbytes())};
    if (model.boundary_of(data[0].inputs).scalar_type() != data[0].inputs.scalar_type())
      measurement.read = read;
    if (data[0].targets.defined())
      measurement.targets = Bytes{static_cast<std::int64_t>(data[0].targets.nbytes())};
    for (const auto& [name, field] : data[0].fields) {
      measurement.fields.push_back({name, Bytes{static_cast<std::int64_t>(field.nbytes())}});
    }
    if (!loss.terms().empty()) measurement.loss = loss_report_bytes(loss);
    (void)measure_memory(chain, data[0]);  // once to settle what is allocated for the first time
    measurement.layers = measure_memory(chain, data[0]);
    const std::unique_ptr<RecordedChain> recorded = record(chain, data, request, refusal);
    profile.repeats = std::min(
        profile.repeats, measure_times(chain, recorded.get(), data, request, measurement.layers, core_share));
    fill_left_out(classes, measurement.layers);
    profile.measurements.push_back(std::move(measurement));
  }
  if (request.device.is_cpu()) {
    profile.core_share = core_share.share();
  } else {
    profile.times_of = times_of(request, refusal);
  }
  return profile;
}

}  // namespace

Profile profile_model(const Model& model, const Loss& loss, const ProfileRequest& request) {
  STAGECRAFT_CHECK(!request.micro_batch_sizes.empty() && request.repeats >= 1 && request.data,
                   "nothing to measure");
  install_counting_allocator();
  Profile profile = measured_profile(model, loss, request);
  // A run that follows in this process may need the device's memory in other sizes, and for recordings.
  if (!request.device.is_cpu()) c10::getDeviceAllocator(request.device.type())->emptyCache();
  return profile;
}

}  // namespace stagecraft
