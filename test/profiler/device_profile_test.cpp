// Profiles of a model on a device that is not the CPU (test/support/fake_accelerator.h): every layer runs there
// and nowhere else, and the bytes are those that the device's allocator was asked for.

#include "base/error.h"
#include "base/json.h"
#include "profiler/layer_profiler.h"
#include "profiler/memory_meter.h"
#include "test/profiler/models.h"
#include "test/support/catch.h"
#include "test/support/fake_accelerator.h"
#include "test/support/fake_graphs.h"

#include <ATen/record_function.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace stagecraft::test::device_profile_cases {
namespace {

ProfileRequest request_for(const ProfiledModel& subject, at::Device device) {
  ProfileRequest request;
  request.micro_batch_sizes = {4};
  request.repeats = 3;
  request.warmup = Seconds{0};
  request.device = device;
  request.data = [&subject](std::int64_t size, int) { return subject.data(size); };
  return request;
}

/// What updates see on a profile's way, in the CPU's memory; dropout must be off.
struct Watched {
  Profile profile;
  std::vector<at::Tensor> gradients;
};
Watched watched(const ProfiledModel& subject, std::shared_ptr<DeviceGraphs> graphs) {
  Watched seen;
  ProfileRequest request = request_for(subject, fake_accelerator());
  request.repeats = 7;
  request.passes_per_update = 3;
  request.graphs = std::move(graphs);
  request.data = [&](std::int64_t size, int index) {
    at::manual_seed(static_cast<std::uint64_t>(index));
    return subject.data(size);
  };
  request.update = [&](int, const Tensors&, const Tensors& gradients) {
    for (const at::Tensor& gradient : gradients) seen.gradients.push_back(gradient.cpu());
  };
  seen.profile = profile_model(subject.model, *subject.loss, request);
  return seen;
}

bool equal(const std::vector<at::Tensor>& one, const std::vector<at::Tensor>& other) {
  return std::ranges::equal(one, other,
                            [](const at::Tensor& a, const at::Tensor& b) { return at::equal(a, b); });
}

/// The fake's, counted; refuses to make another one than the first `most`.
class CountedGraphs final : public DeviceGraphs {
 public:
  explicit CountedGraphs(int most) : most_(most) {}
  [[nodiscard]] Pool make_pool() override { return inner_->make_pool(); }
  [[nodiscard]] std::unique_ptr<DeviceGraph> record(Pool pool, const std::function<void()>& work) override {
    if (recorded == most_) throw InternalError("no room for a recording");
    ++recorded;
    return std::make_unique<Counted>(inner_->record(pool, work), launched);
  }
  int recorded = 0, launched = 0;

 private:
  struct Counted final : DeviceGraph {
    Counted(std::unique_ptr<DeviceGraph> its_inner, int& its_count)
        : inner(std::move(its_inner)), count(its_count) {}
    void launch() override {
      ++count;
      inner->launch();
    }
    std::unique_ptr<DeviceGraph> inner;
    int& count;
  };
  std::shared_ptr<DeviceGraphs> inner_ = fake_graphs();
  int most_;
};

/// Operators of forwards that the CPU and the device were asked for, by name.
class Operators {
 public:
  Operators() {
    instance = this;
    handle_ = at::addGlobalCallback(
        at::RecordFunctionCallback(&Operators::see).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
  }
  ~Operators() {
    at::removeCallback(handle_);
    instance = nullptr;
  }
  Operators(const Operators&) = delete;
  Operators& operator=(const Operators&) = delete;
  std::set<std::string> on_cpu, on_device;

 private:
  static std::unique_ptr<at::ObserverContext> see(const at::RecordFunction& call) {
    static const std::set<std::string> forwards{
        "aten::mm",        "aten::addmm",       "aten::bmm",  "aten::matmul", "aten::convolution",
        "aten::embedding", "aten::_softmax",    "aten::gelu", "aten::relu",   "aten::native_layer_norm",
        "aten::clamp_min", "aten::baddbmm",     "aten::sub",  "aten::linear", "aten::max_pool2d_with_indices",
        "aten::tanh",      "aten::index_select"};
    if (inside_a_device_operator() || !forwards.contains(call.name())) return nullptr;
    for (const c10::IValue& input : call.inputs()) {
      if (!input.isTensor() || !input.toTensor().defined() || input.toTensor().dim() == 0) continue;
      (input.toTensor().is_cpu() ? instance->on_cpu : instance->on_device).insert(call.name());
    }
    return nullptr;
  }

  inline static Operators* instance = nullptr;
  at::CallbackHandle handle_;
};

}  // namespace

TEST_CASE("a device's profile runs no layer on the CPU", "[device_profile]") {
  at::set_num_threads(1);
  for (const ProfiledModel& subject : subjects(0.1)) {
    INFO(subject.model.name);
    const Operators seen;
    const Profile profile =
        profile_model(subject.model, *subject.loss, request_for(subject, fake_accelerator()));
    CHECK_NOTHROW(validate(profile, "measured"));
    CHECK(seen.on_cpu == std::set<std::string>{});
    CHECK(seen.on_device.size() >= 2);
    CHECK(device_wide_waits().back() == "unused memory goes");
  }
}

// Masks of dropout lie in larger memory on a device, and operators take other memory for themselves there:
// that those figures are right, stage_memory_test.cpp shows.
TEST_CASE("what rows keep on a device is what they keep on the CPU", "[device_profile]") {
  at::set_num_threads(1);
  std::vector<ProfiledModel> all = subjects(0);
  all.push_back(captured_bundles());
  for (const ProfiledModel& subject : all) {
    const Profile here = profile_model(subject.model, *subject.loss, request_for(subject, at::kCPU));
    const Profile there =
        profile_model(subject.model, *subject.loss, request_for(subject, fake_accelerator()));
    const Measurement& cpu = here.measurements.front();
    const Measurement& device = there.measurements.front();
    CHECK(device.input == cpu.input);
    CHECK(device.targets == cpu.targets);
    REQUIRE(device.layers.size() == cpu.layers.size());
    for (std::size_t i = 0; i < cpu.layers.size(); ++i) {
      INFO(subject.model.name << " " << cpu.layers[i].name);
      const auto kept = [](const LayerProfile& layer) {
        Json json = json::write(layer);
        if (layer.name == "loss")
          json.erase("kept_for_input_bytes");  // on the CPU with a number of the host's
        for (const std::string pass : {"forward", "backward_input", "backward_weight", "step", "backward"}) {
          json.erase(pass);
          json.erase(pass + "_transient_bytes");
        }
        return json.dump();
      };
      CHECK(kept(device.layers[i]) == kept(cpu.layers[i]));
    }
  }
}

TEST_CASE("what an update takes for itself on a device is measured there", "[device_profile]") {
  const ProfiledModel subject = std::move(subjects(0)[0]);
  ProfileRequest request = request_for(subject, fake_accelerator());
  request.update = [&](int layer, const Tensors&, const Tensors&) {
    const auto bytes = at::TensorOptions(fake_accelerator()).dtype(at::kByte);
    (void)at::empty(1024 * (layer + 1), bytes);
    (void)at::empty(100'000, at::TensorOptions(at::kByte));  // the host's
  };
  const Profile profile = profile_model(subject.model, *subject.loss, request);
  for (std::size_t i = 0; i < profile.measurements[0].layers.size(); ++i) {
    const LayerProfile& layer = profile.measurements[0].layers[i];
    INFO(layer.name);
    CHECK(layer.step_transient.value_or(Bytes{}) ==
          Bytes{layer.parameters > Bytes{} ? 1024 * (static_cast<std::int64_t>(i) + 1) : 0});
  }
}

TEST_CASE("a meter counts from when it was made, and its peak from when it was reset", "[device_profile]") {
  for (const at::Device device : {at::Device(at::kCPU), fake_accelerator()}) {
    const auto bytes = at::TensorOptions(device).dtype(at::kByte);
    const at::Tensor before = at::empty(1000, bytes);
    MemoryMeter meter(device);
    at::Tensor one = at::empty(300, bytes);
    const at::Tensor two = at::empty(30, bytes);
    CHECK(meter.live() == Bytes{330});
    one.reset();
    CHECK(meter.live() == Bytes{30});
    CHECK(meter.peak() == Bytes{330});
    meter.reset_peak();
    CHECK(meter.peak() == Bytes{30});
  }
}

TEST_CASE("recordings are started in the order of a run, and compute what launched operators compute",
          "[device_profile]") {
  at::set_num_threads(1);
  for (const ProfiledModel& subject : subjects(0)) {
    INFO(subject.model.name);
    const Watched plain = watched(subject, nullptr);
    CHECK(plain.profile.times_of == "launched operators");
    const auto graphs = std::make_shared<CountedGraphs>(std::numeric_limits<int>::max());
    const Watched recorded = watched(subject, graphs);
    CHECK(recorded.profile.times_of == "recordings");
    CHECK(!plain.gradients.empty());
    CHECK(equal(recorded.gradients, plain.gradients));
    int rows = 0, with_weights = 0, with_backward = 0;
    for (const LayerProfile& layer : recorded.profile.measurements.front().layers) {
      ++rows;
      if (layer.parameters > Bytes{}) ++with_weights;
      if (!layer.frozen.value_or(false)) ++with_backward;
      CHECK(layer.forward.median > Seconds{});
      CHECK((layer.backward_weight.median > Seconds{}) == (layer.parameters > Bytes{}));
    }
    CHECK(graphs->recorded == 2 * (rows + with_backward + 2 * with_weights));
    const int passes = 1 + recorded.profile.repeats;
    CHECK(graphs->launched == rows + passes * (rows + with_backward + with_weights));
  }
}

TEST_CASE("what a device does not record is timed as it is launched, and the profile says so",
          "[device_profile]") {
  at::set_num_threads(1);
  const ProfiledModel subject = std::move(subjects(0)[0]);
  const Watched plain = watched(subject, nullptr);
  for (const int most : {0, 3, 20, 30}) {
    const auto graphs = std::make_shared<CountedGraphs>(most);
    const Watched refused = watched(subject, graphs);
    CHECK(refused.profile.times_of == "launched operators: no room for a recording");
    CHECK(graphs->recorded == most);
    CHECK(graphs->launched == 0);
    CHECK(equal(refused.gradients, plain.gradients));
  }
  // A run records no stage with such layers.
  const auto graphs = std::make_shared<CountedGraphs>(1000);
  CHECK(watched(captured_bundles(), graphs).profile.times_of ==
        "launched operators: layer \"embed\" is never recorded");
  CHECK(graphs->recorded == 0);
}

}  // namespace stagecraft::test::device_profile_cases
