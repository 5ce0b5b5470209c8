#include "base/files.h"
#include "base/json.h"
#include "test/partitioner/random_profile.h"
#include "test/support/catch.h"

#include <cstdio>
#include <functional>
#include <unistd.h>

namespace stagecraft {
namespace {

Profile small_profile() {
  Profile profile;
  profile.model = "small";
  for (const std::int64_t size : {2, 4}) {
    Measurement m;
    m.micro_batch = size;
    m.layers = {test::plain_layer(0, 1, 8), test::plain_layer(1, 2, 0)};
    profile.measurements.push_back(m);
  }
  return profile;
}

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const InputError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a profile survives its file", "[profile]") {
  const std::string path = "/tmp/stagecraft_profile_test_" + std::to_string(getpid()) + ".json";
  const Profile profile = small_profile();
  write_json_file(path, json::write(profile));
  const Profile read = read_profile(path);
  std::remove(path.c_str());
  CHECK(json::write(read) == json::write(profile));
  CHECK(read.at(4).micro_batch == 4);
}

TEST_CASE("times beyond all bounds are refused", "[profile]") {
  Json json = json::write(small_profile());
  json["measurements"][0]["layers"][1]["forward"]["median_ms"] = 1e300;
  CHECK(message_of([&] {
          (void)json::read<Profile>(json, {"p.json", ""});
        }).find("p.json: /measurements/0/layers/1/forward/median_ms: expected at least 0 and at most 1") ==
        0);
}

TEST_CASE("layers that together are beyond all bounds are refused", "[profile]") {
  const auto refused = [](const std::function<void(LayerProfile&)>& change) {
    Profile profile = small_profile();
    profile.optimizer_bytes_per_parameter_byte = 8;
    for (Measurement& m : profile.measurements) {
      for (LayerProfile& layer : m.layers) change(layer);
    }
    return message_of([&] { validate(profile, "p.json"); });
  };
  CHECK(refused([](LayerProfile&) {}) == "");
  CHECK(refused([](LayerProfile& l) { l.step.median = Seconds{0.6e9}; }) ==
        "p.json: /measurements/0/layers: expected at most 1000000000000 ms of all layers, found 1.2e+12");
  CHECK(refused([](LayerProfile& l) {
          l.parameters = Bytes{std::int64_t{5} << 40U};
        }).find("bytes of weights and optimizer state of all layers, found 8.8e+13") != std::string::npos);
  CHECK(refused([](LayerProfile& l) {
          l.backward_transient = Bytes{-(std::int64_t{1} << 62U)};
        }).find("bytes of activations of all layers, found 9.22e+18") != std::string::npos);
}

TEST_CASE("the example profile reads", "[profile]") {
  const Profile profile = read_profile(STAGECRAFT_TEST_DATA "/profiles/gpt_10_layers.json");
  CHECK(profile.at(8).layers.size() == 11);
  CHECK(profile.at(8).layers.back().name == "loss");
}

TEST_CASE("a size that was not measured is not guessed", "[profile]") {
  CHECK(
      message_of([] { (void)small_profile().at(3); }) ==
      "the profile of small has no measurement of micro-batches of 3 samples, only of 2, 4; measure it with "
      "`stagecraft profile --micro-batch-sizes 3` or plan with one of those");
}

TEST_CASE("profiles that contradict themselves are refused", "[profile]") {
  const auto refused = [](const std::function<void(Profile&)>& spoil) {
    Profile profile = small_profile();
    spoil(profile);
    return message_of([&] { validate(profile, "p.json"); });
  };
  CHECK(refused([](Profile&) {}) == "");
  CHECK(refused([](Profile& p) { p.measurements[1].micro_batch = 2; }) ==
        "p.json: /measurements/1/micro_batch: the size 2 was measured before; keep one");
  CHECK(refused([](Profile& p) { p.measurements[1].layers.pop_back(); }) ==
        "p.json: /measurements/1/layers: 1 layers, but 2 in the first measurement");
  CHECK(refused([](Profile& p) { p.measurements[0].layers[1].name = "layer0"; }) ==
        "p.json: /measurements/0/layers/1/name: \"layer0\" is there twice; expected a name for each layer");
  CHECK(refused([](Profile& p) { p.measurements[0].layers[1].measured_as = "other"; }) ==
        "p.json: /measurements/0/layers/1/measured_as: expected another layer's name, found \"other\"");
  CHECK(refused([](Profile& p) { p.measurements[1].layers[1].name = "other"; }) ==
        "p.json: /measurements/1/layers/1/name: \"other\", but \"layer1\" in the first measurement");
  CHECK(refused([](Profile& p) {
          p.measurements[1].layers[1].parameters = Bytes{4};
        }).find("weights do not depend on the micro-batch") != std::string::npos);
}

TEST_CASE("profiles whose bundles do not fit each other are refused", "[profile]") {
  const auto refused = [](const std::function<void(LayerProfile & first, LayerProfile & last)>& spoil) {
    Profile profile = small_profile();
    for (Measurement& measurement : profile.measurements) {
      LayerProfile& first = measurement.layers[0];
      LayerProfile& last = measurement.layers[1];
      first.inputs.resize(1);
      first.outputs = {{Bytes{8}}, {Bytes{16}}};
      last.inputs.resize(2);
      last.outputs.resize(1);
      spoil(first, last);
    }
    return message_of([&] { validate(profile, "p.json"); });
  };
  CHECK(refused([](LayerProfile&, LayerProfile&) {}) == "");
  CHECK(refused([](LayerProfile& first, LayerProfile&) { first.inputs.clear(); }) ==
        "p.json: /measurements/0/layers/0/inputs: expected 1, as many as go on before it, found 0");
  CHECK(refused([](LayerProfile&, LayerProfile& last) { last.inputs.pop_back(); }) ==
        "p.json: /measurements/0/layers/1/inputs: expected 2, as many as go on before it, found 1");
  CHECK(refused([](LayerProfile&, LayerProfile& last) { last.outputs.clear(); }) ==
        "p.json: /measurements/0/layers/1/outputs: expected those that go on behind it");
  CHECK(refused([](LayerProfile&, LayerProfile& last) { last.inputs[1].gradient_of = 1; }) ==
        "p.json: /measurements/0/layers/1/inputs/1/gradient_of: expected an output that has a gradient, "
        "found 1");
  CHECK(refused([](LayerProfile& first, LayerProfile&) { first.outputs[1].same_as = 1; }) ==
        "p.json: /measurements/0/layers/0/outputs/1/same_as: expected one of 1 inputs, found 1");
}

}  // namespace stagecraft
