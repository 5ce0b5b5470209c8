#include "profiler/layer_profiler.h"

#include "base/json.h"
#include "test/profiler/models.h"
#include "test/support/catch.h"

#include <chrono>
#include <map>
#include <set>

namespace stagecraft {
namespace {

ProfileRequest request_for(const test::ProfiledModel& subject) {
  ProfileRequest request;
  request.micro_batch_sizes = {2, 4};
  request.repeats = 5;
  request.warmup = Seconds{0};
  request.data = [&subject](std::int64_t size, int) { return subject.data(size); };
  return request;
}

}  // namespace

TEST_CASE("a profile has a row per layer and one for the loss, and is one that the planner reads",
          "[layer_profiler]") {
  at::set_num_threads(1);
  for (const test::ProfiledModel& subject : test::subjects(0.1)) {
    const Profile profile = profile_model(subject.model, *subject.loss, request_for(subject));
    INFO(subject.model.name);
    CHECK_NOTHROW(validate(profile, "measured"));
    CHECK(json::write(json::read<Profile>(json::write(profile), {})) == json::write(profile));
    REQUIRE(profile.measurements.size() == 2);
    CHECK(profile.repeats == 5);
    CHECK(profile.model_fingerprint == subject.model.fingerprint);
    for (const Measurement& measurement : profile.measurements) {
      const std::vector<BoundarySpec> shapes = boundaries(subject.model, measurement.micro_batch);
      REQUIRE(measurement.layers.size() == subject.model.layers.size() + 1);
      CHECK(measurement.input.value == shapes.front().bytes());
      std::int64_t parameters = 0;
      for (std::size_t i = 0; i < subject.model.layers.size(); ++i) {
        const LayerProfile& layer = measurement.layers[i];
        CHECK(layer.name == subject.model.layers[i]->name());
        CHECK(layer.output.value == shapes[i + 1].bytes());
        CHECK(layer.forward.median > Seconds{0});
        CHECK((layer.backward_weight.median > Seconds{0}) == (layer.parameters > Bytes{0}));
        parameters += layer.parameters.value;
      }
      CHECK(parameters == 4 * subject.model.parameter_count());
      CHECK(measurement.layers.back().name == "loss");
      CHECK(measurement.layers.back().output == Bytes{0});
    }
  }
}

TEST_CASE("the update of every layer with weights is timed", "[layer_profiler]") {
  at::set_num_threads(1);
  const test::ProfiledModel subject = std::move(test::subjects(0)[0]);
  ProfileRequest request = request_for(subject);
  std::set<int> updated;
  request.optimizer = "test";
  request.optimizer_bytes_per_parameter_byte = 2;
  request.update = [&](int layer, const Tensors& parameters, const Tensors& gradients) {
    CHECK(parameters.size() == gradients.size());
    updated.insert(layer);
  };
  const Profile profile = profile_model(subject.model, *subject.loss, request);
  CHECK(profile.optimizer_bytes_per_parameter_byte == 2);
  for (std::size_t i = 0; i < profile.measurements[0].layers.size(); ++i) {
    const LayerProfile& layer = profile.measurements[0].layers[i];
    CHECK(updated.contains(static_cast<int>(i)) == (layer.parameters > Bytes{0}));
  }
}

TEST_CASE("what an update takes for itself is measured, what it keeps is not", "[layer_profiler]") {
  at::set_num_threads(1);
  const test::ProfiledModel subject = std::move(test::subjects(0)[0]);
  ProfileRequest request = request_for(subject);
  std::map<int, at::Tensor> kept;
  const auto bytes_for = [](int layer) { return 1024 * (layer + 1); };
  request.update = [&](int layer, const Tensors&, const Tensors&) {
    const at::TensorOptions bytes(at::kByte);
    if (!kept.contains(layer)) kept[layer] = at::empty(100'000, bytes);
    (void)at::empty(bytes_for(layer), bytes);
    (void)at::empty(bytes_for(layer) / 2, bytes);
    (void)at::empty(1, bytes);
  };
  const Profile profile = profile_model(subject.model, *subject.loss, request);
  for (std::size_t i = 0; i < profile.measurements[0].layers.size(); ++i) {
    const LayerProfile& layer = profile.measurements[0].layers[i];
    INFO(layer.name);
    CHECK(layer.step_transient.value_or(Bytes{}) ==
          Bytes{layer.parameters > Bytes{} ? bytes_for(static_cast<int>(i)) : 0});
  }
}

TEST_CASE("a spent budget means fewer repeats, never none", "[layer_profiler]") {
  at::set_num_threads(1);
  const test::ProfiledModel subject = std::move(test::subjects(0)[0]);
  ProfileRequest request = request_for(subject);
  request.budget = Seconds{0};
  request.repeats = 1000;
  CHECK(profile_model(subject.model, *subject.loss, request).repeats == 3);
}

TEST_CASE("layers that move no data are known as views, and what backward needs is known",
          "[layer_profiler]") {
  at::set_num_threads(1);
  const test::ProfiledModel subject = std::move(test::subjects(0)[0]);
  const Profile profile = profile_model(subject.model, *subject.loss, request_for(subject));
  for (std::size_t i = 0; i < subject.model.layers.size(); ++i) {
    const LayerProfile& layer = profile.measurements[0].layers[i];
    const std::string type = subject.model.layers[i]->facts().type;
    INFO(layer.name);
    if (type == "flatten") CHECK(layer.output_is_input);
    if (type == "linear") {
      CHECK(layer.keeps_input);
      CHECK(layer.kept_for_input == Bytes{0});
      CHECK(layer.weight_half_keeps_input == true);
      CHECK(layer.weight_half_keeps_gradient);
      CHECK(layer.kept_for_weight == Bytes{0});
    }
    if (type == "relu") CHECK(layer.keeps_output);
  }
}

}  // namespace stagecraft
