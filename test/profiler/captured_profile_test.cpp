// Profiles of captured models: of equal layers a few are run, and estimates agree with what a run measures.

#include "profiler/layer_classes.h"
#include "profiler/layer_profiler.h"
#include "profiler/profile_estimate.h"
#include "test/models/captured_folder.h"
#include "test/profiler/models.h"
#include "test/support/catch.h"

#include <fmt/format.h>

namespace stagecraft::test::captured_profile_cases {
namespace {

constexpr std::int64_t kSize = 4;

ProfiledModel subject_at(const std::string& path) {
  ModelConfig config;
  json::read_value(Json{{"family", "captured"}, {"path", path}}, {"run.json", "/model"}, config,
                   json::Range{});
  return {build_model(config, {{8}, at::kFloat, 4}, at::kFloat, {"run.json", "/model"}),
          LossConfig{CrossEntropy{}}.make()};
}

Profile measured(const ProfiledModel& subject, int representatives) {
  ProfileRequest request;
  request.micro_batch_sizes = {kSize};
  request.repeats = 3;
  request.warmup = Seconds{0};
  request.representatives = representatives;
  request.data = [&](std::int64_t size, int) { return subject.data(size); };
  return profile_model(subject.model, *subject.loss, request);
}

Profile estimated(const ProfiledModel& subject) {
  EstimateRequest request;
  request.micro_batch_sizes = {kSize};
  request.flops_per_second = 1e12;
  request.bytes_per_second = 1e9;
  request.targets_per_sample = Bytes{8};
  return estimate_profile(subject.model, *subject.loss, request);
}

/// The model "norm" with `count` equal layers of batch norm in the middle.
std::string repeated_norm(const ScratchFolder& folder, int count) {
  const auto name = [](int i, const std::string& what) { return fmt::format("more{}.{}", i, what); };
  Edits edits;
  edits.manifest = [&](Json& manifest) {
    const Json norm = manifest["layers"][1], head = manifest["layers"][2];
    manifest["layers"].erase(2);
    for (int i = 1; i < count; ++i) {
      Json layer = norm;
      layer["name"] = fmt::format("more{}", i);
      for (const char* kind : {"parameters", "buffers"}) {
        for (Json& weight : layer[kind]) {
          const std::string old = weight.get<std::string>(), made = name(i, old);
          manifest["weights"][made] = manifest["weights"][old];
          weight = made;
        }
      }
      manifest["layers"].push_back(layer);
    }
    manifest["layers"].push_back(head);
  };
  edits.weights = [&](std::map<std::string, at::Tensor>& weights) {
    const std::map<std::string, at::Tensor> before = weights;
    for (int i = 1; i < count; ++i) {
      for (const auto& [old, tensor] : before) {
        if (old.starts_with("1.")) weights[name(i, old)] = tensor;
      }
    }
  };
  return edited_copy(folder, "norm", edits);
}

std::int64_t value_of(const std::optional<Bytes>& bytes) { return bytes.value_or(Bytes{}).value; }

void check_same_bytes(const LayerProfile& a, const LayerProfile& b) {
  INFO(a.name);
  CHECK(a.parameters == b.parameters);
  CHECK(a.buffers == b.buffers);
  CHECK(a.output == b.output);
  CHECK(a.kept_for_input == b.kept_for_input);
  CHECK(a.kept_for_weight == b.kept_for_weight);
  CHECK(a.keeps_input == b.keeps_input);
  CHECK(a.keeps_output == b.keeps_output);
  CHECK(a.output_is_input == b.output_is_input);
  CHECK(a.weight_half_keeps_input == b.weight_half_keeps_input);
  CHECK(a.weight_half_keeps_output == b.weight_half_keeps_output);
  CHECK(a.weight_half_keeps_gradient == b.weight_half_keeps_gradient);
}

}  // namespace

TEST_CASE("of layers with equal graphs a few are run, and the others are given their figures",
          "[captured_profile]") {
  at::set_num_threads(1);
  const ScratchFolder folder;
  const ProfiledModel subject = subject_at(repeated_norm(folder, 8));
  REQUIRE(subject.model.layers.size() == 10);
  const Profile all = measured(subject, 0), few = measured(subject, 3);
  CHECK_NOTHROW(validate(few, "measured"));
  CHECK(json::write(json::read<Profile>(json::write(few), {})) == json::write(few));
  std::vector<std::string> left_out;
  for (std::size_t i = 0; i < all.measurements[0].layers.size(); ++i) {
    const LayerProfile &whole = all.measurements[0].layers[i], &part = few.measurements[0].layers[i];
    CHECK(part.name == whole.name);
    check_same_bytes(part, whole);
    CHECK(part.forward_transient == whole.forward_transient);
    CHECK(part.backward_transient == whole.backward_transient);
    CHECK(part.forward.median > Seconds{});
    CHECK_FALSE(whole.measured_as);
    if (part.measured_as) left_out.push_back(part.name + " as " + *part.measured_as);
  }
  // Layers 1 to 8 are equal: 1, 4 and 8 are run.
  CHECK(left_out ==
        std::vector<std::string>{"more1 as 1", "more2 as 1", "more4 as 1", "more5 as 1", "more6 as 1"});
}

TEST_CASE("equal graphs with other values passing by are not alike", "[captured_profile]") {
  at::set_num_threads(1);
  const ProfiledModel subject =
      captured_bundles();  // blocks 1, 3 and 5 have one graph; block 1's output passes block 3
  const Profile all = measured(subject, 0), few = measured(subject, 1);
  std::vector<std::string> left_out;
  for (std::size_t i = 0; i < all.measurements[0].layers.size(); ++i) {
    const LayerProfile &whole = all.measurements[0].layers[i], &part = few.measurements[0].layers[i];
    check_same_bytes(part, whole);
    CHECK(part.inputs.size() == whole.inputs.size());
    REQUIRE(part.outputs.size() == whole.outputs.size());
    for (std::size_t k = 0; k < part.outputs.size(); ++k) {
      CHECK(part.outputs[k].bytes == whole.outputs[k].bytes);
      CHECK(part.outputs[k].same_as == whole.outputs[k].same_as);
    }
    if (part.measured_as) left_out.push_back(part.name + " as " + *part.measured_as);
  }
  CHECK(left_out == std::vector<std::string>{"blocks.5 as blocks.1"});
}

TEST_CASE("figures of layers that are not run are medians, and the largest spread", "[captured_profile]") {
  std::vector<LayerProfile> layers(4);
  const auto set = [&](std::size_t i, double median, double spread) {
    layers[i].name = fmt::format("l{}", i);
    layers[i].forward = {Seconds{median}, Seconds{spread}};
  };
  set(0, 3, 0.1);
  set(1, 1, 0.3);
  set(2, 2, 0.2);
  set(3, 0, 0);
  const LayerClasses classes{{false, false, false, true}, {{0}, {1}, {2}, {0, 1, 2}}};
  fill_left_out(classes, layers);
  CHECK(layers[3].name == "l3");
  CHECK(layers[3].measured_as == "l0");
  CHECK(layers[3].forward.median == Seconds{2});
  CHECK(layers[3].forward.spread == Seconds{0.3});
}

TEST_CASE("an estimate's bytes are those that are measured", "[captured_profile]") {
  at::set_num_threads(1);
  const ScratchFolder folder;
  for (const std::string& path : {captured_model("tiny"), captured_model("norm"), captured_model("dropout"),
                                  repeated_norm(folder, 3)}) {
    INFO(path);
    // What kernels allocate inside: of dropout random numbers, of batch norm statistics.
    const std::int64_t inside = path == captured_model("tiny") ? 0 : 512;
    const ProfiledModel subject = subject_at(path);
    REQUIRE(not_estimated(subject.model).empty());
    const Profile run = measured(subject, 0), thought = estimated(subject);
    CHECK_NOTHROW(validate(thought, "estimated"));
    CHECK(thought.estimated_from == "multiply-adds and bytes at 1 TFLOP/s and 1 GB/s");
    CHECK(thought.measurements[0].input == run.measurements[0].input);
    CHECK(thought.measurements[0].targets == run.measurements[0].targets);
    REQUIRE(thought.measurements[0].layers.size() == run.measurements[0].layers.size());
    for (std::size_t i = 0; i < run.measurements[0].layers.size(); ++i) {
      const LayerProfile &a = thought.measurements[0].layers[i], &b = run.measurements[0].layers[i];
      check_same_bytes(a, b);
      CHECK(a.forward_transient.value + inside >= b.forward_transient.value);
      CHECK(a.backward_transient.value + inside >= b.backward_transient.value);
      CHECK(value_of(a.backward_input_transient) + inside >= value_of(b.backward_input_transient));
      CHECK(value_of(a.backward_weight_transient) + inside >= value_of(b.backward_weight_transient));
    }
  }
}

TEST_CASE("an estimate's times are those of products or of bytes, whichever is longer",
          "[captured_profile]") {
  const ProfiledModel subject = subject_at(captured_model("tiny"));
  // Layer 0: addmm of [4,8] and [8,16], then relu.
  const std::vector<OperatorWork> forward = subject.model.layers[0]->facts().estimate(kSize, true).forward;
  REQUIRE(forward.size() == 2);
  CHECK(forward[0].multiply_adds == kSize * 8 * 16);
  CHECK(forward[0].bytes == 4 * (16 + kSize * 8 + 8 * 16 + kSize * 16));
  CHECK(forward[1].multiply_adds == 0);
  CHECK(forward[1].bytes == 4 * 2 * kSize * 16);
  const LayerProfile layer = estimated(subject).measurements[0].layers[0];
  CHECK(layer.forward.median.value == Approx((forward[0].bytes + forward[1].bytes) / 1e9));
  EstimateRequest slow;
  slow.micro_batch_sizes = {kSize};
  slow.flops_per_second = 1;
  slow.bytes_per_second = 1e12;
  const Profile products = estimate_profile(subject.model, *subject.loss, slow);
  CHECK(products.measurements[0].layers[0].forward.median.value == Approx(2 * kSize * 8 * 16));
  CHECK(products.measurements[0].layers[0].backward_weight.median.value == Approx(2 * kSize * 8 * 16));
}

TEST_CASE("built-in layers are not estimated", "[captured_profile]") {
  const ProfiledModel subject = std::move(subjects(0)[0]);
  CHECK(not_estimated(subject.model).size() == subject.model.layers.size());
}

TEST_CASE("a folder without weights is profiled, and says what training lacks", "[captured_profile]") {
  at::set_num_threads(1);
  const ScratchFolder folder;
  const auto constants_alone = [](std::map<std::string, at::Tensor>& weights) {
    std::erase_if(weights, [](const auto& weight) { return !weight.first.starts_with("constant/"); });
  };
  const ProfiledModel subject = subject_at(edited_copy(folder, "dropout",
                                                       {.manifest =
                                                            [](Json& manifest) {
                                                              manifest["weights_stored"] = false;
                                                              manifest["checked"] = nullptr;
                                                            },
                                                        .weights = constants_alone}));
  CHECK(subject.model.layers[0]->facts().missing_weights.find("--set model.weights=FOLDER") !=
        std::string::npos);
  CHECK(measured(subject, 3).measurements[0].layers[0].forward.median > Seconds{});
  CHECK(subject_at(captured_model("dropout")).model.layers[0]->facts().missing_weights.empty());
}

}  // namespace stagecraft::test::captured_profile_cases
