#pragma once

// Captured models for tests: those in test/data/captured, and copies of them with something changed.

#include "base/files.h"
#include "base/json.h"
#include "models/captured/format/graph_file.h"
#include "models/tensors/safetensors.h"
#include "models/tensors/safetensors_writer.h"
#include "test/support/scratch_folder.h"

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace stagecraft::test {

[[nodiscard]] inline std::string captured_model(const std::string& name) {
  return STAGECRAFT_CAPTURED_MODELS "/" + name;
}

/// Steps are added to the forward: results of the backward count on behind them. `last`: the highest number.
inline void count_on(Json& graph, int first, int last, int by) {
  for (const char* part : {"backward_input", "backward_weight"}) {
    std::string text = graph[part].dump();
    for (int i = last; i >= first; --i) {
      const std::string from = "\"%" + std::to_string(i), to = "\"%" + std::to_string(i + by);
      for (std::size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) {
        text.replace(at, from.size(), to);
      }
    }
    graph[part] = Json::parse(text);
  }
}

/// What is to be changed in a copy.
struct Edits {
  std::function<void(Json& manifest)> manifest{};
  std::function<void(Json&graph)> first_graph{}, loss_graph{};
  std::function<void(std::map<std::string, at::Tensor>& weights)> weights{};
  std::function<void(std::map<std::string, at::Tensor>& constants)> constants{};
  bool doubles = false;  ///< every f32 becomes f64
};

/// A copy in `folder`, whose graphs have names that fit their contents again.
inline std::string edited_copy(const ScratchFolder& folder, const std::string& model, const Edits& edits) {
  const std::string from = captured_model(model), to = folder.path("model");
  const auto text = [&](const Json& json) {
    std::string dumped = json.dump();
    for (std::size_t at = 0; edits.doubles && (at = dumped.find("f32[")) != std::string::npos;) {
      dumped.replace(at, 3, "f64");
    }
    return dumped;
  };
  make_folder(to + "/graphs");
  Json manifest = json::parse_file(from + "/manifest.json");
  std::vector<Json*> graphs;
  for (Json& layer : manifest["layers"]) graphs.push_back(&layer["graph"]);
  if (manifest.contains("loss")) graphs.push_back(&manifest["loss"]["graph"]);
  for (Json* each : graphs) {
    Json& name = *each;
    Json graph = json::parse_file(from + "/graphs/" + name.get<std::string>() + ".json");
    if (each == graphs.front() && edits.first_graph) edits.first_graph(graph);
    if (each == graphs.back() && edits.loss_graph) edits.loss_graph(graph);
    const std::string bytes = text(graph);
    name = captured::graph_hash(bytes);
    write_file_atomically(to + "/graphs/" + name.get<std::string>() + ".json", bytes);
  }
  if (edits.manifest) edits.manifest(manifest);
  write_file_atomically(to + "/manifest.json", text(manifest));
  const auto copy = [&](const std::string& file, const auto& edit) {
    std::map<std::string, at::Tensor> tensors;
    if (is_there(from + file)) tensors = read_safetensors(from + file).tensors;
    if (edit) edit(tensors);
    std::vector<std::pair<std::string, at::Tensor>> list;
    for (const auto& [name, tensor] : tensors) {
      list.emplace_back(name, edits.doubles && tensor.is_floating_point() ? tensor.to(at::kDouble) : tensor);
    }
    if (!list.empty()) write_safetensors(to + file, list);
  };
  copy("/weights.safetensors", edits.weights);
  copy("/constants.safetensors", edits.constants);
  return to;
}

}  // namespace stagecraft::test
