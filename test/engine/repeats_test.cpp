// Captured models on GPUs that are asked for the same bits every time (cuda.deterministic): what LibTorch would
// refuse in the middle of a step is refused when the model is opened. Needs no GPU.

#include "models/captured/replay/repeats.h"

#include "engine/run/resolve/training_inputs.h"
#include "models/captured/operators/operators.h"
#include "models/tensors/safetensors.h"
#include "models/tensors/safetensors_writer.h"
#include "test/models/captured_folder.h"
#include "test/support/catch.h"
#include "test/support/scratch_folder.h"

#include <ATen/ATen.h>
#include <torch/headeronly/version.h>

#include <string>

using namespace stagecraft;
using namespace stagecraft::test;

namespace {

RunConfig on_gpus(const ScratchFolder& folder, const std::string& model, bool deterministic) {
  write_safetensors(folder.path("data.safetensors"),
                    {{"inputs", at::ones({24, 8})}, {"targets", at::ones({24, 4})}});
  const Json config{{"device", "cuda"},
                    {"cuda", {{"deterministic", deterministic}}},
                    {"model", {{"family", "captured"}, {"path", model}}},
                    {"data", {{"type", "arrays"}, {"path", folder.path("data.safetensors")}}},
                    {"loss", {{"type", "mse"}}},
                    {"optimizer", {{"type", "SGD"}, {"params", {{"lr", 0.1}}}}},
                    {"train_batch_size", 8},
                    {"train_micro_batch_size_per_gpu", 4},
                    {"train_steps", 1},
                    {"threads_per_rank", 1}};
  return read_run_config(folder.write("run.json", config.dump()), {});
}

}  // namespace

TEST_CASE("a model with an operator that no GPU repeats is refused when it is opened", "[repeats]") {
  const ScratchFolder folder;
  const std::string varies = edited_copy(folder, "tiny", {.first_graph = [](Json& graph) {
                                           graph["evaluate"] = Json::parse(R"({"steps": [
      ["aten::t", ["%0 f32[8,16]"], ["p0"]],
      ["aten::addmm", ["%1 f32[b,16]"], ["p1", "in0", "%0", 1, 1]],
      ["aten::median.dim", ["%2 f32[b,1]", null], ["%1", 1, true]],
      ["aten::add.Tensor", ["%3 f32[b,16]"], ["%1", "%2", 1]]], "outputs": ["%3"]})");
                                         }});
  CHECK_THROWS_WITH(
      open_training_inputs(on_gpus(folder, varies, true), "run.json"),
      Catch::Matchers::StartsWith("run.json: /cuda/deterministic: layer \"") &&
          Catch::Matchers::ContainsSubstring("has aten::median.dim in its evaluation, for which"));
  CHECK_NOTHROW(open_training_inputs(on_gpus(folder, varies, false), "run.json"));
  CHECK_NOTHROW(open_training_inputs(on_gpus(folder, captured_model("tiny"), true), "run.json"));
}

TEST_CASE("all graphs of layers and losses are looked through", "[repeats]") {
  struct Of final : Layer, captured::OfGraphs {
    explicit Of(captured::Graph its_graph) : Layer("of", {.type = "of"}), graph(std::move(its_graph)) {}
    at::Tensor forward(const Weights&, const at::Tensor& input, const Context&, Kept*) const override {
      return input;
    }
    at::Tensor backward_input(const Tensors&, const at::Tensor& gradient, Kept&, bool) const override {
      return gradient;
    }
    std::vector<const captured::Graph*> graphs() const override { return {&other, &graph}; }
    captured::Graph other, graph;
  };
  using Part = captured::Steps captured::Graph::*;
  for (const auto& [part, where] : {std::pair<Part, std::string>{&captured::Graph::forward, "forward"},
                                    {&captured::Graph::backward_input, "backward"},
                                    {&captured::Graph::backward_weight, "backward of its weights"},
                                    {&captured::Graph::evaluate, "evaluation"}}) {
    for (const captured::Operator& op : captured::operators()) {
      INFO(op.name);
      captured::Graph graph;
      (graph.*part).resize(2);
      (graph.*part)[0].name = "stagecraft::dropout";
      (graph.*part)[1].name = op.name;
      const bool refused =
          op.repeats == captured::Repeats::refused || op.repeats == captured::Repeats::refused_summed;
      CHECK(captured::refused_step(Of(std::move(graph))) ==
            (refused ? std::string(op.name) + " in its " + where : ""));
    }
  }
  // Losses of a sample each are not added up.
  captured::Graph graph;
  captured::Step step;
  step.name = "aten::nll_loss2d_forward";
  step.op = captured::handle_of(*captured::find_operator(step.name));
  step.arguments.resize(5);
  for (const int reduction : {0, 1, 2}) {
    step.arguments[3].constant = reduction;
    graph.forward = {step};
    CHECK(captured::refused_step(Of(graph)).empty() == (reduction == 0));
  }
}

TEST_CASE("every operator of captured graphs says how a GPU repeats it", "[repeats]") {
  int refused = 0;
  for (const captured::Operator& op : captured::operators()) {
    INFO(op.name);
    CHECK(op.repeats != captured::Repeats::unknown);
    refused += op.repeats >= captured::Repeats::refused ? 1 : 0;
  }
  CHECK(refused == (TORCH_VERSION_MINOR < 15 ? 33 : 32));  // 2.15 can repeat max_pool3d's backward
}
