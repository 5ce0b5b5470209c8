// No number of a config gets past the reader to where it ends a run with an error of its own.

#include "engine/config/config.h"
#include "engine/optimizers/model_optimizer.h"
#include "engine/records/settings/loss_scale.h"
#include "engine/run/resolve/training_inputs.h"
#include "test/support/catch.h"
#include "test/support/command.h"

#include <ATen/ops/ones.h>
#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

using namespace stagecraft;
using test::ScratchFolder;

namespace {

Json numbers_config() {
  return Json::parse(R"({
    "model": {"family": "mlp", "hidden": [4]},
    "data": {"type": "synthetic", "samples": 16, "validation_samples": 4, "shape": [4], "classes": 3},
    "loss": {"type": "cross_entropy"},
    "optimizer": {"type": "SGD", "params": {}},
    "scheduler": {"type": "constant", "params": {}},
    "train_batch_size": 4, "train_micro_batch_size_per_gpu": 2, "train_steps": 3
  })");
}

/// Values that keys without a default need, by their name.
const Json kNeeded = {
    {"T_0", 2}, {"max_lr", 0.1}, {"decay_num_steps", 1}, {"vocabulary", 5}, {"path", "none"}};

using Visit = std::function<void(const Json& config, const std::string& pointer)>;

/// Calls `visit` for every key of numbers that the schema has, with a config in which its object stands.
void each_number(const Json& schema, const Json& config, const std::string& pointer, const Visit& visit) {
  if (schema.contains("oneOf")) {
    for (const Json& alternative : schema["oneOf"]) {
      Json chosen = config;
      Json& object = chosen[Json::json_pointer(pointer)];
      object = Json::object();
      for (const auto& [key, value] : alternative["properties"].items()) {
        if (value.contains("const")) object[key] = value["const"];
      }
      each_number(alternative, chosen, pointer, visit);
    }
    return;
  }
  if (schema.contains("anyOf")) return each_number(schema["anyOf"][0], config, pointer, visit);
  if (schema.contains("items")) return each_number(schema["items"], config, pointer + "/0", visit);
  if (schema.contains("properties")) {
    Json with = config;
    if (!pointer.empty() && !with.contains(Json::json_pointer(pointer)))
      with[Json::json_pointer(pointer)] = Json::object();
    for (const auto& [key, value] : schema["properties"].items()) {
      const auto required = schema.value("required", Json::array());
      const bool needed = std::find(required.begin(), required.end(), key) != required.end();
      const Json::json_pointer here(pointer + "/" + key);
      if (needed && kNeeded.contains(key) && !with.contains(here)) with[here] = kNeeded[key];
    }
    for (const auto& [key, value] : schema["properties"].items())
      each_number(value, with, pointer + "/" + key, visit);
    return;
  }
  const Json type = schema.value("type", Json());
  if (type == "integer" || type == "number") visit(config, pointer);
}

/// What a run makes of a config before and around its steps, without threads and files.
void use(const std::string& path) {
  const c10::InferenceMode guard;
  const RunConfig config = read_run_config(path);
  const TrainingInputs inputs = open_training_inputs(config, path);
  const RunShape shape = run_shape(config, *inputs.data, /*synchronous=*/true, path);
  for (const std::int64_t step : {std::int64_t{0}, std::int64_t{1}, shape.steps - 1}) {
    const double rate = config.scheduler.rate({step, shape.steps, 0.1});
    OptimizerState state;
    constexpr std::int64_t kLarge = 1 << 20;  // a run looks at memory first
    if (parameter_bytes(inputs.model, 0).value > kLarge) return;
    const Tensors parameters = initial_parameters(inputs.model, 0, static_cast<std::uint64_t>(config.seed));
    Tensors gradients;
    for (const at::Tensor& parameter : parameters) gradients.push_back(at::ones(parameter.sizes()));
    inputs.optimizer->step(0, {.learning_rate = rate}, parameters, gradients,
                           std::vector<bool>(parameters.size(), true), state);
  }
  (void)inputs.data->inputs(Split::train, {0, 1});
  const std::int64_t classes = boundaries(inputs.model, 1).back().shape.back();
  if (classes != 3) return;
  const at::Tensor output = at::ones({2, classes});
  Kept kept;
  if (inputs.loss->targets() == Targets::classes) {
    (void)inputs.loss->forward(output, inputs.data->targets(Split::train, {0, 1}), 1, &kept, false);
    const double scale = config.fp16.enabled ? LossScale(config.fp16).value() : 1;
    (void)inputs.loss->backward(kept, scale);
  }
}

}  // namespace

TEST_CASE("every number of a config may be anything: it is taken, or refused with its key",
          "[config_numbers]") {
  const ScratchFolder folder;
  const std::vector<std::string> values{"0",
                                        "-1",
                                        "1e-300",
                                        "1e30",
                                        "3e38",
                                        "1e39",
                                        "1e300",
                                        "-1e300",
                                        "2147483647",
                                        "9223372036854775807",
                                        "9223372036854775808",
                                        "-9223372036854775808",
                                        "1e400",
                                        "\"nan\"",
                                        "null"};
  int keys = 0, used = 0, refused = 0;
  each_number(run_config_schema(), numbers_config(), "", [&](const Json& base, const std::string& pointer) {
    ++keys;
    for (const std::string& value : values) {
      Json config = base;
      config[Json::json_pointer(pointer)] = "HERE";
      if (pointer.starts_with("/fp16") && pointer != "/fp16/enabled") config["fp16"]["enabled"] = true;
      if (pointer == "/epochs") config.erase("train_steps");
      std::string text = config.dump();
      text.replace(text.find("\"HERE\""), 6, value);
      INFO(pointer << " = " << value);
      try {
        use(folder.write("run.json", text));
        ++used;
      } catch (const InputError& error) {
        ++refused;
        CHECK((test::says(error.what(), "run.json") || test::says(error.what(), "the learning rate of ")));
      } catch (const RefusedError&) {
        ++refused;
      } catch (const std::exception& error) {
        FAIL_CHECK("not the reader's: " << error.what());
      }
    }
  });
  CHECK(keys > 100);
  CHECK(used > keys);
  CHECK(refused > keys);
}

TEST_CASE("a number beyond float32 or an integer's range is refused with its key and the range",
          "[config_numbers]") {
  const ScratchFolder folder;
  const auto said = [&](const char* pointer, const Json& value) -> std::string {
    Json config = numbers_config();
    config[Json::json_pointer(pointer)] = value;
    try {
      (void)read_run_config(folder.write("run.json", config.dump()));
    } catch (const InputError& error) {
      return error.what();
    }
    return "accepted";
  };
  CHECK(test::says(said("/fp16", {{"enabled", true}, {"loss_scale", 1e300}}), "/fp16/loss_scale: expected"));
  CHECK(test::says(said("/fp16", {{"enabled", true}, {"loss_scale", 1e31}}),
                   "/fp16/loss_scale: expected at least 0"));
  CHECK(said("/fp16", {{"enabled", true}, {"loss_scale", 1e30}}) == "accepted");
  CHECK(test::says(
      said("/optimizer/params/lr", 1e39),
      "/optimizer/params/lr: expected a number from -3.4e+38 to 3.4e+38, the range of float32, found 1e+39"));
  CHECK(said("/optimizer/params/lr", 3e38) == "accepted");
  CHECK(test::says(said("/seed", 9223372036854775808U), "/seed: expected at least 0 and below 9.22"));
}

TEST_CASE("a dynamic loss scale never outgrows float32", "[config_numbers]") {
  Fp16Config config;
  config.enabled = true;
  config.loss_scale_window = 1;
  LossScale scale(config);
  for (int step = 0; step < 1000; ++step) scale.update(/*overflow=*/false);
  CHECK(scale.value() == kMostLossScale);
  scale.update(/*overflow=*/true);
  scale.update(/*overflow=*/true);
  CHECK(scale.value() == kMostLossScale / 2);
}
