#include "stagecraft/models/captured/model_folder.h"

#include "stagecraft/base/json.h"
#include "stagecraft/models/captured/graph_file.h"
#include "stagecraft/models/families/registry.h"
#include "stagecraft/models/safetensors.h"

#include <c10/core/InferenceMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <set>
#include <utility>

namespace stagecraft::captured {

// What a manifest holds, by its keys.

struct ManifestLayer {
  std::string name, graph;
  std::vector<std::string> parameters, buffers, constants;
};
template <class V>
void describe(V& v, ManifestLayer& l) {
  v.required("name", l.name, "unique", json::non_empty());
  v.required("graph", l.graph, "file in graphs/, without .json");
  v.required("parameters", l.parameters, "PyTorch's names");
  v.required("buffers", l.buffers, "PyTorch's names");
  v.required("constants", l.constants, "names of constants");
}

struct Checked {
  std::string output, evaluation;
  std::int64_t gradients = 0, equal = 0, buffers = 0, buffers_equal = 0;
  double worst = 0;
  std::optional<std::string> of;
};
template <class V>
void describe(V& v, Checked& c) {
  v.required("output", c.output, "how the output compared with PyTorch's");
  v.required("evaluation", c.evaluation, "how the output in evaluation compared");
  v.required("gradients", c.gradients, "compared", json::at_least(0));
  v.required("equal", c.equal, "of them, to the bit", json::at_least(0));
  v.required("buffers", c.buffers, "compared", json::at_least(0));
  v.required("buffers_equal", c.buffers_equal, "of them, to the bit", json::at_least(0));
  v.required("worst", c.worst, "largest difference of one", json::at_least(0));
  v.optional("of", c.of, "what was compared, where it is not the model itself");
}

struct Manifest {
  std::int64_t format = 0;
  std::string name, torch;
  std::vector<std::int64_t> sizes;
  std::string input, output;
  std::vector<ManifestLayer> layers;
  std::map<std::string, std::string> weights;
  bool weights_stored = true;
  std::optional<Checked> checked;
};
template <class V>
void describe(V& v, Manifest& m) {
  v.required("format", m.format, "of the folder", json::between(1, 1));
  v.required("name", m.name, "of the model");
  v.required("torch", m.torch, "version that captured it");
  v.required("sizes", m.sizes, "micro-batch sizes compared with PyTorch", json::non_empty());
  v.required("input", m.input, "type");
  v.required("output", m.output, "type");
  v.required("layers", m.layers, "in order", json::non_empty());
  v.required("weights", m.weights, "types by name");
  v.optional("weights_stored", m.weights_stored, "false: only constants have values");
  v.optional("checked", m.checked, "what the capture saw; absent or null: it was not checked");
}

namespace {

class FolderMaker {
 public:
  explicit FolderMaker(const std::string& path) : file_(path + "/manifest.json") { folder_.path = path; }

  std::shared_ptr<const ModelFolder> make() {
    manifest_ = json::read_file<Manifest>(file_);
    folder_.name = manifest_.name;
    folder_.input = parse_value_type(manifest_.input, at("/input"));
    folder_.output = parse_value_type(manifest_.output, at("/output"));
    folder_.least_samples = *std::min_element(manifest_.sizes.begin(), manifest_.sizes.end());
    if (folder_.least_samples < 1) throw InputError(at("/sizes"), "expected sizes of at least 1");
    if (manifest_.layers.size() > kMostLayers) {
      throw InputError(at("/layers"), fmt::format("{} layers; a model has at most {}",
                                                  manifest_.layers.size(), kMostLayers));
    }
    for (const auto& [name, text] : manifest_.weights) {
      types_[name] = parse_value_type(text, at("/weights/" + name));
      if (types_[name].depends_on_b()) throw InputError(at("/weights/" + name), "depends on b");
    }
    for (std::size_t i = 0; i < manifest_.layers.size(); ++i) add_layer(i);
    require_same(folder_.output, folder_.layers.back().replay->graph().output, at("/output"),
                 "the last layer makes");
    for (const auto& [name, type] : types_) {
      if (!named_.contains(name)) throw InputError(at("/weights/" + name), "no layer names it");
    }
    folder_.weights_stored = manifest_.weights_stored;
    read_weights();
    return std::make_shared<const ModelFolder>(std::move(folder_));
  }

 private:
  [[nodiscard]] InputPlace at(const std::string& pointer) const { return {file_, pointer}; }

  static void require_same(const ValueType& expected, const ValueType& found, const InputPlace& place,
                           const std::string& who) {
    if (expected == found) return;
    throw InputError(place, fmt::format("expected {}, but {} {}", expected.text(), who, found.text()));
  }

  void add_layer(std::size_t i) {
    const ManifestLayer& layer = manifest_.layers[i];
    const std::string pointer = fmt::format("/layers/{}", i);
    if (!layer_names_.insert(layer.name).second) {
      throw InputError(at(pointer + "/name"), fmt::format("\"{}\" is another layer's name", layer.name));
    }
    FolderLayer made{layer.name, replay_of(layer.graph, at(pointer + "/graph")), layer.parameters,
                     layer.buffers, layer.constants};
    const Graph& graph = made.replay->graph();
    const ValueType& before = i == 0 ? folder_.input : folder_.layers.back().replay->graph().output;
    require_same(
        graph.input, before, at(pointer + "/graph"),
        i == 0 ? "the model's input is" : fmt::format("layer \"{}\" makes", folder_.layers.back().name));
    if (i > 0 && graph.input_gradient == kNoValue) {
      throw InputError(at(pointer + "/graph"),
                       "its backward_input has no output: only the first layer's input may "
                       "be without a gradient");
    }
    check_weights(layer.parameters, graph.parameters, pointer + "/parameters");
    check_weights(layer.buffers, graph.buffers, pointer + "/buffers");
    check_weights(layer.constants, graph.constants, pointer + "/constants");
    for (std::size_t j = 0; j < layer.parameters.size(); ++j)
      own(layer.parameters[j], pointer, "parameters", j);
    for (std::size_t j = 0; j < layer.buffers.size(); ++j) {
      if (graph.new_buffers[j] != kNoValue) own(layer.buffers[j], pointer, "buffers", j);
    }
    folder_.layers.push_back(std::move(made));
  }

  std::shared_ptr<const Replay> replay_of(const std::string& hash, const InputPlace& place) {
    const bool plain =
        hash.size() == kGraphHashDigits && hash.find_first_not_of("0123456789abcdef") == std::string::npos;
    if (!plain) {  // it becomes part of a path
      throw InputError(place, fmt::format("expected {} hex digits in lower case, found {}", kGraphHashDigits,
                                          json::brief(hash)));
    }
    std::shared_ptr<const Replay>& replay = replays_[hash];
    if (replay == nullptr) replay = std::make_shared<const Replay>(read_graph(folder_.path, hash));
    return replay;
  }

  void check_weights(const std::vector<std::string>& names, const std::vector<ValueType>& types,
                     const std::string& pointer) {
    if (names.size() != types.size()) {
      throw InputError(at(pointer),
                       fmt::format("the graph has {} of them, found {}", types.size(), names.size()));
    }
    for (std::size_t i = 0; i < names.size(); ++i) {
      const InputPlace place = at(fmt::format("{}/{}", pointer, i));
      const auto found = types_.find(names[i]);
      if (found == types_.end()) throw InputError(place, fmt::format("\"{}\" is not in /weights", names[i]));
      require_same(types[i], found->second, place, fmt::format("\"{}\" is", names[i]));
      named_.insert(names[i]);
    }
  }

  /// What a run changes belongs to one layer.
  void own(const std::string& name, const std::string& pointer, const char* key, std::size_t i) {
    if (owned_.insert(name).second) return;
    throw InputError(at(fmt::format("{}/{}/{}", pointer, key, i)),
                     fmt::format("\"{}\" is named twice: tied weights would be trained apart", name));
  }

  void read_weights() {
    const SafetensorsFile file = read_safetensors(folder_.path + "/weights.safetensors");
    for (const auto& [name, type] : types_) {
      if (!manifest_.weights_stored && !name.starts_with("constant/")) continue;
      folder_.weights[name] = file.tensor(name, type.at(1), type.dtype);
    }
    for (const auto& [name, tensor] : file.tensors) {
      if (!types_.contains(name)) {
        throw InputError({file.path, ""},
                         fmt::format("tensor \"{}\" is not in the manifest's weights", name));
      }
    }
  }

  std::string file_;
  Manifest manifest_;
  ModelFolder folder_;
  std::map<std::string, ValueType> types_;  ///< of weights
  std::map<std::string, std::shared_ptr<const Replay>> replays_;
  std::set<std::string> layer_names_, named_, owned_;
};

}  // namespace

std::shared_ptr<const ModelFolder> read_model_folder(const std::string& path) {
  const c10::InferenceMode normal(false);  // what is read outlives the caller's mode
  return FolderMaker(path).make();
}

struct FolderReader::Shared {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<const ModelFolder>> folders;
};

std::shared_ptr<FolderReader::Shared> FolderReader::make_shared() { return std::make_shared<Shared>(); }

std::shared_ptr<const ModelFolder> FolderReader::read(const std::string& path) const {
  const std::scoped_lock lock(shared_->mutex);
  std::shared_ptr<const ModelFolder>& folder = shared_->folders[path];
  if (folder == nullptr) folder = read_model_folder(path);
  return folder;
}

}  // namespace stagecraft::captured
