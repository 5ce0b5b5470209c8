// A captured model's manifest and graphs, as {"manifest": ..., "graphs": {NAME: ...}} in one file. Graphs are put
// where their hash says, and manifests name them so; a "torch" that is "this" becomes LibTorch's version. What is read
// is prepared for small micro-batches, or refused.

#include "models/captured/model_folder.h"

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "models/captured/format/graph_file.h"
#include "test/fuzz/json_changes.h"
#include "test/fuzz/judge.h"
#include "test/fuzz/scratch_folder.h"
#include "test/fuzz/target.h"

#include <torch/headeronly/version.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

namespace stagecraft::fuzz {
namespace {

constexpr std::size_t kMostGraphs = 64;

/// Writes graphs under their hashes: by name.
std::map<std::string, std::string> write_graphs(const ScratchFolder& folder, const Json& graphs) {
  std::map<std::string, std::string> hashes;
  if (!graphs.is_object() || graphs.size() > kMostGraphs) return hashes;
  for (const auto& [name, graph] : graphs.items()) {
    const std::string bytes = graph.dump();
    hashes[name] = captured::graph_hash(bytes);
    (void)folder.write("graphs/" + hashes[name] + ".json", bytes);
  }
  return hashes;
}

void name_by_hash(Json& holder, const std::map<std::string, std::string>& hashes) {
  if (!holder.is_object() || !holder.contains("graph") || !holder["graph"].is_string()) return;
  const auto found = hashes.find(holder["graph"].get<std::string>());
  if (found != hashes.end()) holder["graph"] = found->second;
}

void prepare(const captured::Replay& replay) {
  for (const std::int64_t b : {1, 2, 7}) {
    try {
      (void)replay.at(b, c10::Device(c10::kCPU));
    } catch (const InputError&) {  // sizes that are negative, or beyond 64 bits, at this b
    }
  }
}

void judge_model(const captured::ModelFolder& model) {
  require(!model.layers.empty(), "a model has layers");
  require(model.input == model.layers.front().replay->graph().inputs.front(),
          "the first layer takes the input");
  for (const captured::FolderLayer& layer : model.layers) {
    const captured::Graph& graph = layer.replay->graph();
    require(layer.parameters.size() == graph.parameters.size(), "each parameter has a name");
    require(layer.constants.size() == graph.constants.size(), "each constant has a name");
    require(graph.gradients.size() == graph.parameters.size(), "each parameter has a gradient or none");
    prepare(*layer.replay);
  }
  if (model.loss) prepare(*model.loss->replay);
}

}  // namespace
}  // namespace stagecraft::fuzz

FUZZ_MUTATOR(model_folder) { return stagecraft::fuzz::mutate_json(data, size, max_size, seed); }

FUZZ_TARGET(model_folder) {
  using namespace stagecraft;
  static const fuzz::ScratchFolder folder;
  try {
    Json json = json::parse_text(std::string(data, data + size), "x");
    if (!json.is_object() || !json.contains("manifest")) return 0;
    std::filesystem::remove_all(folder.path("graphs"));
    make_folder(folder.path("graphs"));
    const auto hashes = fuzz::write_graphs(folder, json.value("graphs", Json()));
    Json& manifest = json["manifest"];
    if (manifest.is_object()) {
      if (manifest.value("torch", Json()) == "this") manifest["torch"] = TORCH_VERSION;
      if (manifest.contains("layers") && manifest["layers"].is_array()) {
        for (Json& layer : manifest["layers"]) fuzz::name_by_hash(layer, hashes);
      }
      if (manifest.contains("loss")) fuzz::name_by_hash(manifest["loss"], hashes);
    }
    (void)folder.write("manifest.json", manifest.dump());
    fuzz::judge_model(*captured::read_model_folder(folder.path()));
    fuzz::accepted();
  } catch (const InputError&) {
  }
  return 0;
}
