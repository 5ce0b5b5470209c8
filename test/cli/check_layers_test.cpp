// `check-layers` on layers that each break one promise (broken_trainer.cpp), and what a run says of code that is not
// Stagecraft's own and throws.

#include "base/json.h"
#include "test/cli/train_cases.h"
#include "test/support/catch.h"
#include "test/support/command.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace stagecraft::test {
namespace {

Json broken(const std::string& defect) {
  return {{"type", "broken"}, {"name", defect.empty() ? "whole" : defect}, {"defect", defect}};
}

Json config_of(const ScratchFolder& folder, const std::vector<Json>& layers) {
  Json list = Json::array({{{"type", "linear"}, {"features", 4}}});
  for (const Json& layer : layers) list.push_back(layer);
  return {{"model", {{"family", "sequential"}, {"layers", list}}},
          {"data", {{"type", "synthetic"}, {"shape", {6}}, {"classes", 4}, {"samples", 64}}},
          {"loss", {{"type", "cross_entropy"}}},
          {"optimizer", {{"type", "SGD"}, {"params", {{"lr", 0.1}}}}},
          {"train_batch_size", 16},
          {"train_micro_batch_size_per_gpu", 8},
          {"train_steps", 2},
          {"threads_per_rank", 1},
          {"profiler", {{"repeats", 2}, {"warmup_ms", 0}}},
          {"pipeline", {{"stages", 1}, {"schedule", "fill_drain"}}},
          {"run_dir", folder.path("run")}};
}

CommandResult trainer(const ScratchFolder& folder, const std::string& verb, const Json& config,
                      const std::string& more = "") {
  folder.write("run.json", config.dump());
  return shell_line(
      folder, fmt::format("{} {} {} {}", STAGECRAFT_BROKEN_TRAINER, verb, folder.path("run.json"), more));
}

/// By layer, the aspects that failed.
std::map<std::string, std::vector<std::string>> failures(const Json& report) {
  std::map<std::string, std::vector<std::string>> found;
  for (const Json& layer : report.at("layers")) {
    std::vector<std::string>& its = found[layer.at("layer").get<std::string>()];
    for (const auto& [aspect, check] : layer.at("checks").items()) {
      if (!check.at("passed").get<bool>()) its.push_back(aspect);
    }
    CHECK(its.empty() == layer.at("passed").get<bool>());
  }
  return found;
}

}  // namespace

TEST_CASE("check-layers finds what is wrong with each of a config's layers", "[check_layers]") {
  const ScratchFolder folder;
  const std::vector<std::pair<std::string, std::string>> defects = {
      {"input in place", "in_place"},
      {"parameter in place", "in_place"},
      {"buffer done again", "in_place"},
      {"buffer replaced", "in_place"},
      {"gradient in place", "in_place"},
      {"input in place, backward", "in_place"},
      {"buffer in evaluation", "evaluation"},
      {"noise in evaluation", "evaluation"},
      {"batch statistics", "evaluation"},
      {"random", "deterministic"},
      {"counts calls", "deterministic"},
      {"kept left", "deterministic"},
      {"kept left, weight half", "deterministic"},
      {"keeps scratch", "micro_batches"},
      {"keeps a buffer", "micro_batches"},
      {"other micro-batch", "micro_batches"},
      {"halves apart", "micro_batches"},
      {"nan", "output"},
      {"nan in evaluation", "output"},
      {"float64", "output"},
      {"float16", "output"},
      {"shape", "output"},
      {"undefined output", "output"},
      {"parameter index", "output"},
      {"forward throws std", "output"},
      {"forward throws int", "output"},
      {"forward throws type", "output"},
      {"weight twice", "weight_gradients"},
      {"weight transposed", "weight_gradients"},
      {"bias forgotten", "weight_gradients"},
      {"nothing added", "weight_gradients"},
      {"added again", "weight_gradients"},
      {"keeps nothing", "weight_gradients"},
      {"sink index", "weight_gradients"},
      {"sink negative", "weight_gradients"},
      {"sink product index", "weight_gradients"},
      {"sink shape", "weight_gradients"},
      {"sink product shape", "weight_gradients"},
      {"sink undefined", "weight_gradients"},
      {"sink integers", "weight_gradients"},
      {"input gradient", "input_gradient"},
      {"one element", "input_gradient"},
      {"nan gradient", "input_gradient"},
      {"undefined gradient", "input_gradient"},
      {"gradient of float64", "deterministic"},
  };
  std::vector<Json> layers{broken("")};
  for (const auto& [defect, aspect] : defects) layers.push_back(broken(defect));
  const CommandResult result = trainer(folder, "check-layers", config_of(folder, layers), "--json");
  INFO(result.err);
  REQUIRE(result.code == 3);
  const Json report = Json::parse(result.out);
  CHECK_FALSE(report.at("passed").get<bool>());
  const auto found = failures(report);
  for (const std::string whole : {"whole", "linear0", "loss"}) {
    INFO(whole);
    if (found.contains(whole)) CHECK(found.at(whole).empty());
  }
  for (const auto& [defect, aspect] : defects) {
    INFO(defect << ": " << report.dump(1));
    const std::vector<std::string>& its = found.at(defect);
    CHECK(std::find(its.begin(), its.end(), aspect) != its.end());
  }
  CHECK(found.at("weight twice") == std::vector<std::string>{"weight_gradients"});
  CHECK(found.at("input gradient") == std::vector<std::string>{"input_gradient"});
  CHECK(found.at("input in place") == std::vector<std::string>{"input_gradient", "in_place"});
  CHECK(found.at("batch statistics") == std::vector<std::string>{"evaluation"});
}

TEST_CASE("check-layers holds the meta device against the forward, and the loss against its rule",
          "[check_layers]") {
  const ScratchFolder folder;
  for (const char* defect : {"meta shape", "meta type"}) {
    const CommandResult result =
        trainer(folder, "check-layers", config_of(folder, {broken(defect)}), "--json");
    INFO(defect << result.err);
    REQUIRE(result.code == 3);
    CHECK(failures(Json::parse(result.out)).at(defect) == std::vector<std::string>{"output"});
  }
  const std::vector<std::pair<std::string, std::string>> losses = {{"", ""},
                                                                   {"gradient", "input_gradient"},
                                                                   {"share", "micro_batches"},
                                                                   {"scale", "micro_batches"},
                                                                   {"weights", "micro_batches"},
                                                                   {"in place", "in_place"},
                                                                   {"a row", "output"},
                                                                   {"throws", "output"}};
  for (const auto& [defect, aspect] : losses) {
    Json config = config_of(folder, {});
    config["loss"] = {{"type", "square"}, {"defect", defect}};
    const CommandResult result = trainer(folder, "check-layers", config, "--json");
    INFO(defect << result.err << result.out);
    CHECK(result.code == (defect.empty() ? 0 : 3));
    const std::vector<std::string> its = failures(Json::parse(result.out)).at("loss");
    CHECK((defect.empty() ? its.empty() : std::find(its.begin(), its.end(), aspect) != its.end()));
  }
}

TEST_CASE("what code of a program's own throws in a run names it", "[check_layers]") {
  const ScratchFolder folder;
  struct Case {
    Json patch;
    int code;
    std::string says;
  };
  const auto layer = [&](const std::string& defect) {
    return Json{{"model", config_of(folder, {broken(defect)})["model"]}};
  };
  const std::string here = "layer \"{}\" (broken), ";
  const auto data = [](const std::string& defect) {
    return Json{{"data", {{"type", "tab"}, {"defect", defect}}}};
  };
  const std::vector<Case> cases = {
      {layer("forward throws std"), 1,
       "(broken), forward of [8, 4], with weight [4], bias [4]: my own exception"},
      {layer("throws at step 2"), 1,
       "rank 0 at step 2, action 1 (forward of micro-batch 0 on stage 0): layer \"throws at step 2\" "
       "(broken), "},
      {layer("forward throws int"), 1,
       "(broken), forward of [8, 4], with weight [4], bias [4]: the number 7 was thrown"},
      {layer("forward throws type"), 1, "an exception of type (anonymous namespace)::Oddity"},
      {layer("forward throws input"), 2,
       "(broken), forward of [8, 4], with weight [4], bias [4]: my input is bad"},
      {layer("backward throws string"), 1,
       "(broken), backward of [8, 4], with weight [4], bias [4]: a string"},
      {layer("weight half throws map"), 1,
       "(broken), backward of its weights, with weight [4], bias [4]: vector::_M_range_check"},
      {layer("make throws std"), 1,
       "layer \"make throws std\" (broken), made for a sample of [4]: my own exception"},
      {layer("null"), 1,
       "layer \"null\" (broken), made for a sample of [4]: what makes it gives a null pointer"},
      {layer("keeps nothing"), 1, "the backward takes 1 tensors out of `kept`, which has 0"},
      {layer("parameter index"), 1, "tensor 2 of a list of 2 is read"},
      {layer("undefined output"), 1, "the output is an undefined tensor"},
      {layer("float64"), 1, "layer \"float64\" (broken), forward of [8, 4]"},
      {layer("float16"), 1, "layer \"float16\" (broken), forward of [8, 4]"},
      {layer("sink index"), 1,
       "layer \"sink index\" (broken), backward of its weights, with weight [4], bias [4]: backward_weight "
       "adds a "
       "gradient of parameter 2, and the layer has 2, numbered from 0"},
      {layer("sink negative"), 1, "backward_weight adds a gradient of parameter -1"},
      {layer("sink product index"), 1, "backward_weight adds a gradient of parameter 1000000"},
      {layer("sink shape"), 1,
       "adds a gradient of parameter 0 (\"weight\") that is of [1]; the parameter is of [4]"},
      {layer("sink product shape"), 1,
       "adds [4, 1] times [1, 4] to the gradient of parameter 0 (\"weight\"), which is of [4]"},
      {layer("sink undefined"), 1, "adds an undefined gradient of parameter 0 (\"weight\")"},
      {layer("sink integers"), 1, "adds a gradient of parameter 0 (\"weight\") that is of Long"},
      {data("open throws std"), 1, "data set \"tab\": my own exception"},
      {data("null"), 1, "data set \"tab\": what opens it gives a null pointer"},
      {data("throws std"), 1, "data set \"tab\": inputs of 8 training samples from 0 to 7: my own exception"},
      {data("throws int"), 1,
       "data set \"tab\": inputs of 8 training samples from 0 to 7: the number 7 was thrown"},
      {data("throws input"), 2,
       "data set \"tab\": inputs of 8 training samples from 0 to 7: my input is bad"},
      {data("a row too few"), 2,
       "data set \"tab\": inputs of 8 training samples from 0 to 7: they are of [7, 6], and its sample() "
       "makes that [8, 6]"},
      {data("a row too few in validation"), 2,
       "data set \"tab\": inputs of 8 validation samples from 0 to 7: they are of [7, 6]"},
      {data("narrow"), 2, "data set \"tab\": inputs of"},
      {data("double"), 2, "they are of type Double, and its sample() says Float"},
      {data("integers"), 2, "they are of type Long, and its sample() says Float"},
      {data("undefined"), 2, "an undefined tensor"},
      {data("float targets"), 2,
       "data set \"tab\": targets of 8 training samples from 0 to 7: they are of type Float, and its "
       "sample() says Long"},
      {data("a class too many"), 2,
       "/data: tab: sample 3 has 4 in its targets, and a loss over 4 classes takes 0 to 3"},
      {data("a negative class"), 2, "/data: tab: sample 0 has -1 in its targets"},
      {data("a target too few"), 2, "data set \"tab\": targets of"},
      {data("field"), 2, "data set \"tab\": \"weight\" of"},
      {{{"loss", {{"type", "square"}, {"defect", "throws"}}}},
       1,
       "the loss, forward of [8, 4] against targets of [8], Long: my own loss"},
      {{{"loss", {{"type", "square"}, {"defect", "a row"}}}},
       1,
       "the value is of shape [1], expected a single number"},
      {{{"optimizer", {{"type", "Thrower"}}}}, 1, "optimizer \"Thrower\": my own optimizer"},
      {{{"scheduler", {{"type", "odd"}}}}, 1, "learning rate \"odd\", at step 0: it is nan"},
      {{{"scheduler", {{"type", "odd"}, {"params", {{"finite", true}}}}}},
       1,
       "learning rate \"odd\", at step 1: my own rate"},
      {{{"pipeline", {{"stages", 1}, {"schedule", "mine"}}}},
       1,
       "schedule \"mine\", built for 1 stages: my own schedule"},
  };
  for (const Case& one : cases) {
    Json config = config_of(folder, {broken("")});
    config.update(one.patch);
    config["run_dir"] = folder.path("run");
    const CommandResult result = trainer(folder, "train", config);
    INFO(one.patch.dump() << "\n" << result.err);
    CHECK(result.code == one.code);
    CHECK(says(result.err, one.says));
    CHECK_FALSE(says(result.err, "defect in Stagecraft"));
    std::filesystem::remove_all(folder.path("run"));
  }
}

}  // namespace stagecraft::test
