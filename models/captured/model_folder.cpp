#include "models/captured/model_folder.h"

#include "base/files.h"
#include "base/json.h"
#include "base/nearest.h"
#include "base/sha256.h"
#include "models/captured/format/graph_file.h"
#include "models/captured/format/manifest.h"
#include "models/captured/shorter_model.h"
#include "models/layers/registry.h"
#include "models/losses/term_names.h"
#include "models/tensors/safetensors.h"

#include <c10/core/InferenceMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/headeronly/version.h>

#include <algorithm>
#include <mutex>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

namespace stagecraft::captured {

namespace {

constexpr const char* kManifest = "manifest.json";

/// As ModelFolder::differs has it.
std::string differences(const Checked& checked) {
  std::vector<std::string> parts;
  if (checked.output != "equal") parts.emplace_back("the output differs");
  if (checked.loss.value_or("equal") != "equal") parts.emplace_back("the loss differs");
  if (checked.terms.value_or("equal") != "equal") parts.emplace_back("terms of the loss differ");
  if (checked.evaluation != "equal") parts.emplace_back("evaluation differs");
  const auto count = [&](std::int64_t equal, std::int64_t all, const char* what) {
    if (equal != all) parts.push_back(fmt::format("{} of {} {} are equal", equal, all, what));
  };
  count(checked.equal, checked.gradients, "gradients");
  count(checked.buffers_equal, checked.buffers, "buffers");
  return fmt::format("{}", fmt::join(parts, ", "));
}

/// Operators keep their names from one minor of torch to the next, and not always what they take and compute.
void require_this_minor(const std::string& torch, const InputPlace& place) {
  if (torch.starts_with(fmt::format("{}.{}.", TORCH_VERSION_MAJOR, TORCH_VERSION_MINOR))) return;
  throw InputError(place, fmt::format("the model was captured with torch {}; this is LibTorch {}, which runs "
                                      "what torch {}.{} captures: capture it again with that",
                                      torch, TORCH_VERSION, TORCH_VERSION_MAJOR, TORCH_VERSION_MINOR));
}

/// Of a folder's manifests together, by hash.
struct FolderGraphs {
  std::map<std::string, std::shared_ptr<const Graph>> graphs;
  std::map<std::string, std::shared_ptr<Replay>> replays;
};

class FolderMaker {
 public:
  FolderMaker(const std::string& path, const std::string& manifest, std::string weights, FolderGraphs& graphs)
      : file_(path + "/" + manifest),
        weights_(std::move(weights)),
        is_shorter_(manifest != kManifest),
        graphs_(graphs) {
    folder_.path = path;
  }

  /// `compiled`: whether to load native code, for the graphs of all manifests.
  std::shared_ptr<const ModelFolder> make(UseCompiled compiled) {
    manifest_ = json::read_file<Manifest>(file_);
    require_this_minor(manifest_.torch, at("/torch"));
    if (is_shorter_ && !manifest_.shorter.empty())
      throw InputError(at("/shorter"), "only manifest.json names shorter ones");
    folder_.name = manifest_.name;
    folder_.input = parse_value_type(manifest_.input, at("/input"));
    folder_.output = parse_value_type(manifest_.output, at("/output"));
    if (manifest_.checked) folder_.differs = differences(*manifest_.checked);
    folder_.least_samples = *std::min_element(manifest_.sizes.begin(), manifest_.sizes.end());
    if (folder_.least_samples < 1) throw InputError(at("/sizes"), "expected sizes of at least 1");
    if (manifest_.layers.size() > kMostLayers) {
      throw InputError(at("/layers"), fmt::format("{} layers; a model has at most {}",
                                                  manifest_.layers.size(), kMostLayers));
    }
    for (const auto& [name, field] : manifest_.fields) add_field(name, field);
    types_ = types_of(manifest_.weights, "/weights/");
    folder_.untrained = types_of(manifest_.untrained, "/untrained/");
    folder_.same_as = manifest_.same_as;
    find_last_readers();
    bundle_ = {{kModelInput, folder_.input}};
    for (std::size_t i = 0; i < manifest_.layers.size(); ++i) add_layer(i);
    if (bundle_.size() != 1) {
      throw InputError(at(fmt::format("/layers/{}/out", manifest_.layers.size() - 1)),
                       fmt::format("expected one value, the model's output; {} go on", bundle_.size()));
    }
    require_same(folder_.output, bundle_.front().type, at("/output"), "the last layer makes");
    if (manifest_.loss) add_loss(*manifest_.loss);
    for (const auto& [name, type] : types_) {
      if (!named_.contains(name)) throw InputError(at("/weights/" + name), "no layer names it");
    }
    for (const auto& [name, type] : folder_.untrained) {
      if (types_.contains(name)) throw InputError(at("/untrained/" + name), "a layer trains it");
    }
    for (const auto& [second, first] : folder_.same_as) {
      if (types_.contains(first) || folder_.untrained.contains(first)) continue;
      throw InputError(at("/same_as/" + second), fmt::format("there is no tensor \"{}\"", first));
    }
    for (const auto& [name, order] : manifest_.memory_orders) add_memory_order(name, order);
    add_parameter_order();
    find_weights();
    for (std::size_t i = 0; i < manifest_.shorter.size(); ++i) add_shorter(i);
    if (compiled != UseCompiled::off) load_compiled(compiled);
    return std::make_shared<const ModelFolder>(std::move(folder_));
  }

 private:
  [[nodiscard]] InputPlace at(const std::string& pointer) const { return {file_, pointer}; }

  void add_memory_order(const std::string& name, const std::vector<std::int64_t>& order) {
    const InputPlace place = at("/memory_orders/" + name);
    const auto type = types_.find(name);
    if (type == types_.end()) throw InputError(place, "no layer names it");
    std::vector<std::int64_t> dimensions(type->second.sizes.size());
    std::iota(dimensions.begin(), dimensions.end(), 0);
    if (!std::is_permutation(order.begin(), order.end(), dimensions.begin(), dimensions.end())) {
      throw InputError(place, fmt::format("expected {} in some order", fmt::join(dimensions, ", ")));
    }
    folder_.memory_orders[name] = order;
  }

  void add_parameter_order() {
    if (manifest_.parameter_order.empty()) return;
    std::set<std::string> trained;
    for (const ManifestLayer& layer : manifest_.layers) {
      trained.insert(layer.parameters.begin(), layer.parameters.end());
    }
    for (std::size_t i = 0; i < manifest_.parameter_order.size(); ++i) {
      const std::string& name = manifest_.parameter_order[i];
      const InputPlace place = at(fmt::format("/parameter_order/{}", i));
      if (!trained.contains(name)) throw InputError(place, fmt::format("no layer trains \"{}\"", name));
      if (!folder_.places.emplace(name, static_cast<std::int64_t>(i)).second) {
        throw InputError(place, fmt::format("\"{}\" is there twice", name));
      }
    }
    for (const std::string& name : trained) {
      if (folder_.places.contains(name)) continue;
      throw InputError(at("/parameter_order"), fmt::format("\"{}\" is missing", name));
    }
  }

  [[nodiscard]] std::map<std::string, ValueType> types_of(const std::map<std::string, std::string>& texts,
                                                          const std::string& pointer) const {
    std::map<std::string, ValueType> types;
    for (const auto& [name, text] : texts) {
      types[name] = parse_value_type(text, at(pointer + name));
      if (types[name].depends_on_b()) throw InputError(at(pointer + name), "depends on b");
    }
    return types;
  }

  static void require_same(const ValueType& expected, const ValueType& found, const InputPlace& place,
                           const std::string& who) {
    if (expected == found) return;
    throw InputError(place, fmt::format("expected {}, but {} {}", expected.text(), who, found.text()));
  }

  void add_field(const std::string& name, const ManifestField& field) {
    const std::string pointer = "/fields/" + name;
    FolderField made{name, parse_value_type(field.type, at(pointer + "/type")), field.from, field.fill};
    const bool of_samples = !made.type.sizes.empty() && made.type.sizes.front() == AffineSize{1, 0} &&
                            std::none_of(made.type.sizes.begin() + 1, made.type.sizes.end(),
                                         [](const AffineSize& size) { return size.depends_on_b(); });
    if (!of_samples) {
      throw InputError(at(pointer + "/type"),
                       fmt::format("expected b as the first size and as no other, found {}", field.type));
    }
    folder_.fields.push_back(std::move(made));
  }

  /// Each of the names a graph's value of that type stands for. `type_of`: of a name; null where `among` has none.
  template <class TypeOf>
  void check_names(const std::vector<std::string>& names, const std::vector<ValueType>& types,
                   const std::string& pointer, const char* among, const TypeOf& type_of) {
    if (names.size() != types.size()) {
      throw InputError(at(pointer),
                       fmt::format("the graph has {} of them, found {}", types.size(), names.size()));
    }
    for (std::size_t i = 0; i < names.size(); ++i) {
      const InputPlace place = at(fmt::format("{}/{}", pointer, i));
      const ValueType* type = type_of(names[i]);
      if (type == nullptr) throw InputError(place, fmt::format("\"{}\" is not in {}", names[i], among));
      require_same(types[i], *type, place, fmt::format("\"{}\" is", names[i]));
    }
  }

  void check_fields(const std::vector<std::string>& names, const std::vector<ValueType>& types,
                    const std::string& pointer) {
    check_names(names, types, pointer, "/fields", [&](const std::string& name) -> const ValueType* {
      const auto found = std::find_if(folder_.fields.begin(), folder_.fields.end(),
                                      [&](const FolderField& field) { return field.name == name; });
      return found == folder_.fields.end() ? nullptr : &found->type;
    });
  }

  void check_terms(const std::vector<std::string>& terms, const Graph& graph) const {
    if (const std::string why = term_names_refusal(terms); !why.empty())
      throw InputError(at("/loss/terms"), why);
    if (graph.outputs.size() != 1 + terms.size()) {
      throw InputError(
          at("/loss/graph"),
          fmt::format("expected one output for the loss and one for each of its {} terms, found {}",
                      terms.size(), graph.outputs.size()));
    }
    for (std::size_t i = 0; i < terms.size(); ++i) {
      const ValueType& type = graph.outputs[1 + i];
      if (!type.sizes.empty() || c10::isComplexType(type.dtype)) {
        throw InputError(at("/loss/graph"),
                         fmt::format("expected one number for the term \"{}\", its output {} is {}", terms[i],
                                     1 + i, type.text()));
      }
      const ValueId gradient = graph.gradient(1 + i);
      for (const Step& step : graph.backward_input) {
        for (const Argument& argument : step.arguments) {
          if (std::find(argument.values.begin(), argument.values.end(), gradient) == argument.values.end())
            continue;
          throw InputError(
              step.place,
              fmt::format("reads g{}, the gradient of the term \"{}\", which has none", 1 + i, terms[i]));
        }
      }
    }
  }

  void add_loss(const ManifestLoss& loss) {
    FolderLoss made{replay_of(loss.graph, at("/loss/graph")),
                    loss.fields,
                    loss.constants,
                    loss.terms,
                    loss.reduction,
                    {}};
    const Graph& graph = made.replay->graph();
    if (graph.inputs.size() != 1) {
      throw InputError(at("/loss/graph"), "a loss reads one tensor, the model's output");
    }
    check_terms(loss.terms, graph);
    require_same(graph.inputs[0], folder_.output, at("/loss/graph"), "the model's output is");
    if (!graph.outputs[0].sizes.empty() || !c10::isFloatingType(graph.outputs[0].dtype)) {
      throw InputError(at("/loss/graph"), fmt::format("expected a loss of one number, its output is {}",
                                                      graph.outputs[0].text()));
    }
    if (!graph.parameters.empty() || !graph.buffers.empty() || graph.input_gradients[0] == kNoValue) {
      throw InputError(at("/loss/graph"), "a loss has neither parameters nor buffers, and a gradient");
    }
    check_fields(loss.fields, graph.fields, "/loss/fields");
    check_weights(loss.constants, graph.constants, "/loss/constants");
    if (loss.units) {
      const auto at_field = std::find(loss.fields.begin(), loss.fields.end(), loss.units->field);
      if (at_field == loss.fields.end()) {
        throw InputError(at("/loss/units/field"), "expected one of the loss's fields");
      }
      const ValueType& type = graph.fields[static_cast<std::size_t>(at_field - loss.fields.begin())];
      if (c10::isFloatingType(type.dtype) ||
          (loss.units->from > 0 && (type.sizes.size() < 2 || loss.units->from >= type.sizes.back().plus))) {
        throw InputError(at("/loss/units"),
                         fmt::format("does not fit \"{}\", which is {}", loss.units->field, type.text()));
      }
      made.units = {loss.units->field, loss.units->ignore, loss.units->from};
    }
    made.of_whole_batch = loss.of_whole_batch;
    folder_.loss = std::move(made);
  }

  void add_layer(std::size_t i) {
    const ManifestLayer& layer = manifest_.layers[i];
    const std::string pointer = fmt::format("/layers/{}", i);
    if (!layer_names_.insert(layer.name).second) {
      throw InputError(at(pointer + "/name"), fmt::format("\"{}\" is another layer's name", layer.name));
    }
    FolderLayer made;
    made.name = layer.name;
    made.replay = replay_of(layer.graph, at(pointer + "/graph"));
    made.parameters = layer.parameters;
    made.buffers = layer.buffers;
    made.constants = layer.constants;
    made.fields = layer.fields;
    const Graph& graph = made.replay->graph();
    read_bundle(i, made);
    make_bundle(i, made);
    const auto has_gradient = [](ValueId id) { return id != kNoValue; };
    const auto trained = std::find_if(folder_.layers.begin(), folder_.layers.end(),
                                      [](const FolderLayer& before) { return !before.parameters.empty(); });
    if (trained != folder_.layers.end() &&
        std::none_of(graph.input_gradients.begin(), graph.input_gradients.end(), has_gradient)) {
      throw InputError(at(pointer + "/graph"),
                       fmt::format("its backward_input has no output, so no gradient comes to layer \"{}\", "
                                   "which has weights to train: expected a gradient of its input",
                                   trained->name));
    }
    check_weights(layer.parameters, graph.parameters, pointer + "/parameters");
    check_weights(layer.buffers, graph.buffers, pointer + "/buffers");
    check_weights(layer.constants, graph.constants, pointer + "/constants");
    check_fields(layer.fields, graph.fields, pointer + "/fields");
    if (std::none_of(graph.outputs.begin(), graph.outputs.end(),
                     [](const ValueType& type) { return type.depends_on_b(); })) {
      throw InputError(at(pointer + "/graph"), "its output has no dimension of samples");
    }
    for (std::size_t j = 0; j < layer.parameters.size(); ++j)
      own(layer.parameters[j], pointer, "parameters", j, true);
    for (std::size_t j = 0; j < layer.buffers.size(); ++j) {
      if (graph.new_buffers[j] != kNoValue) own(layer.buffers[j], pointer, "buffers", j, false);
    }
    folder_.layers.push_back(std::move(made));
  }

  // Bundles: the values that go on, those that a layer passes by first.

  struct Value {
    std::string name;
    ValueType type;
  };
  static constexpr const char* kModelInput = "input";

  [[nodiscard]] std::vector<std::string> names_made(std::size_t layer) const {
    const ManifestLayer& its = manifest_.layers[layer];
    return its.out.value_or(std::vector<std::string>{its.name});
  }

  void find_last_readers() {
    for (std::size_t i = 0; i < manifest_.layers.size(); ++i) {
      for (const std::string& name : manifest_.layers[i].in.value_or(std::vector<std::string>{})) {
        last_reader_[name] = i;
      }
    }
  }

  /// Whether a layer behind layer i reads the value. Where layers say nothing, each reads what is there.
  [[nodiscard]] bool read_behind(const std::string& name, std::size_t i) const {
    const auto last = last_reader_.find(name);
    return last != last_reader_.end() && last->second > i;
  }

  /// What the layer reads, from the bundle before it.
  void read_bundle(std::size_t i, FolderLayer& made) const {
    const ManifestLayer& layer = manifest_.layers[i];
    const Graph& graph = made.replay->graph();
    const std::string pointer = fmt::format("/layers/{}/in", i);
    std::vector<std::string> names;
    for (const Value& value : bundle_) {
      names.push_back(value.name);
      made.before.push_back(value.type);
    }
    const std::vector<std::string> in = layer.in.value_or(names);
    if (in.size() != graph.inputs.size()) {
      throw InputError(at(pointer), fmt::format("its graph reads {} values, found {}: {}",
                                                graph.inputs.size(), in.size(), fmt::join(in, ", ")));
    }
    for (std::size_t k = 0; k < in.size(); ++k) {
      const InputPlace place =
          at(layer.in ? fmt::format("{}/{}", pointer, k) : fmt::format("/layers/{}/graph", i));
      const auto found = std::find(names.begin(), names.end(), in[k]);
      if (found == names.end()) {
        throw InputError(place, fmt::format("no value \"{}\" goes on before it{}; there are {}", in[k],
                                            did_you_mean(in[k], names), fmt::join(names, ", ")));
      }
      const auto at_value = static_cast<std::size_t>(found - names.begin());
      if (std::find(made.reads.begin(), made.reads.end(), at_value) != made.reads.end()) {
        throw InputError(place, fmt::format("\"{}\" is read twice", in[k]));
      }
      require_same(graph.inputs[k], bundle_[at_value].type, place,
                   layer.in ? fmt::format("\"{}\" is", in[k])
                   : i == 0 ? "the model's input is"
                            : fmt::format("layer \"{}\" makes", folder_.layers.back().name));
      made.reads.push_back(at_value);
    }
  }

  /// What goes on behind the layer. A value that it reads and that is read again behind it goes through it, so
  /// that gradients are added in its graph and nowhere else.
  void make_bundle(std::size_t i, FolderLayer& made) {
    const Graph& graph = made.replay->graph();
    const std::vector<std::string> out = names_made(i);
    const std::string pointer = fmt::format("/layers/{}/out", i);
    if (out.size() != graph.outputs.size()) {
      throw InputError(at(pointer), fmt::format("its graph makes {} values, found {}: {}",
                                                graph.outputs.size(), out.size(), fmt::join(out, ", ")));
    }
    std::vector<Value> behind;
    for (std::size_t k = 0; k < bundle_.size(); ++k) {
      const std::string& name = bundle_[k].name;
      const bool is_read = std::find(made.reads.begin(), made.reads.end(), k) != made.reads.end();
      if (const auto again = std::find(out.begin(), out.end(), name); again != out.end()) {
        if (is_read) continue;
        throw InputError(at(fmt::format("{}/{}", pointer, again - out.begin())),
                         fmt::format("another value \"{}\" goes on, which the layer does not read", name));
      }
      if (!read_behind(name, i)) {
        if (is_read) continue;
        throw InputError(at(pointer), fmt::format("no layer reads the value \"{}\"", name));
      }
      if (is_read) {
        throw InputError(at(pointer),
                         fmt::format("\"{}\" is read here and again behind this layer: it must be one of "
                                     "the values that the layer makes",
                                     name));
      }
      made.behind.push_back({bundle_[k].type, false, k});
      behind.push_back(bundle_[k]);
    }
    for (std::size_t k = 0; k < out.size(); ++k) {
      if (std::find(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(k), out[k]) !=
          out.begin() + static_cast<std::ptrdiff_t>(k)) {
        throw InputError(at(fmt::format("{}/{}", pointer, k)), fmt::format("\"{}\" is made twice", out[k]));
      }
      made.behind.push_back({graph.outputs[k], true, k});
      behind.push_back({out[k], graph.outputs[k]});
    }
    const bool ends = i + 1 == manifest_.layers.size();
    for (std::size_t k = 0; !ends && out.size() > 1 && k < out.size(); ++k) {
      if (read_behind(out[k], i)) continue;
      throw InputError(at(fmt::format("{}/{}", pointer, k)),
                       fmt::format("no layer behind it reads \"{}\"", out[k]));
    }
    bundle_ = std::move(behind);
  }

  std::shared_ptr<const Replay> replay_of(const std::string& hash, const InputPlace& place) {
    if (!is_hex(hash, kGraphHashDigits)) {  // it becomes part of a path
      throw InputError(place, fmt::format("expected {} hex digits in lower case, found {}", kGraphHashDigits,
                                          json::brief(hash)));
    }
    std::shared_ptr<Replay>& replay = graphs_.replays[hash];
    if (replay == nullptr) {
      graphs_.graphs[hash] = read_graph(folder_.path, hash);
      replay = std::make_shared<Replay>(graphs_.graphs.at(hash));
    }
    return replay;
  }

  void add_shorter(std::size_t i) {
    const std::int64_t length = manifest_.shorter[i];
    if (i > 0 && length <= manifest_.shorter[i - 1]) {
      throw InputError(at(fmt::format("/shorter/{}", i)),
                       fmt::format("expected ascending lengths, found {}", length));
    }
    const std::string name = fmt::format("manifest.{}.json", length);
    const auto made = FolderMaker(folder_.path, name, weights_, graphs_).make(UseCompiled::off);
    check_shorter(folder_, *made, length, {folder_.path + "/" + name, ""});
    for (const auto& [its_length, other] : folder_.shorter) {
      for (std::size_t k = 0; k < made->layers.size(); ++k) {
        if (!confusable(other->layers[k], made->layers[k])) continue;
        throw InputError(
            {folder_.path + "/" + name, fmt::format("/layers/{}/graph", k)},
            fmt::format("it reads what that of length {} reads, and differs from it", its_length));
      }
    }
    folder_.shorter[length] = made;
  }

  void load_compiled(UseCompiled how) {
    folder_.compiled = read_compiled(folder_.path, graphs_.graphs);
    if (const std::string& why_not = folder_.compiled->why_not; !why_not.empty()) {
      if (how == UseCompiled::allow) return;
      throw InputError(
          {folder_.compiled->file, ""},
          fmt::format("model.compiled is \"require\", but no compiled code can be run: {}", why_not));
    }
    for (const auto& [hash, replay] : graphs_.replays) replay->use(folder_.compiled, how);
  }

  void check_weights(const std::vector<std::string>& names, const std::vector<ValueType>& types,
                     const std::string& pointer) {
    check_names(names, types, pointer, "/weights", [&](const std::string& name) -> const ValueType* {
      const auto found = types_.find(name);
      return found == types_.end() ? nullptr : &found->second;
    });
    named_.insert(names.begin(), names.end());
  }

  /// What forwards change belongs to one layer. A parameter may be several layers', once in each.
  void own(const std::string& name, const std::string& pointer, const char* key, std::size_t i,
           bool parameter) {
    const auto [known, fresh] = owner_of_.try_emplace(name, pointer, parameter);
    if (fresh) return;
    const bool tied = parameter && known->second.second && known->second.first != pointer;
    known->second.first = pointer;
    if (tied) return;
    throw InputError(at(fmt::format("{}/{}/{}", pointer, key, i)),
                     fmt::format("\"{}\" is named twice: layers may share parameters, each of which a layer "
                                 "names once, and no buffers that training changes",
                                 name));
  }

  /// The model folder's files of weights; null where it has none.
  [[nodiscard]] std::shared_ptr<WeightFiles> own_files() const {
    for (const char* name : {"/weights.safetensors", "/weights.safetensors.index.json"}) {
      if (is_there(folder_.path + name)) return std::make_shared<WeightFiles>(folder_.path + name);
    }
    return nullptr;
  }

  [[nodiscard]] WeightNames names() const {
    const std::string& prefix = manifest_.prefix;
    const auto has = [&](const auto& named) { return named.first.starts_with(prefix); };
    return {prefix, !prefix.empty() && std::any_of(types_.begin(), types_.end(), has), manifest_.same_as};
  }

  /// Parameters lie in weight files, constants beside them, buffers in either.
  void find_weights() {
    folder_.weights = {weights_.empty() ? nullptr : std::make_shared<WeightFiles>(weights_), own_files(),
                       names(),
                       folder_.path + ": has no weights: name a file or a folder that has, as model.weights"};
    std::set<std::string> constants, parameters;
    for (const FolderLayer& layer : folder_.layers) {
      constants.insert(layer.constants.begin(), layer.constants.end());
      parameters.insert(layer.parameters.begin(), layer.parameters.end());
    }
    SafetensorsFile fixed{folder_.path + "/constants.safetensors", {}, {}};
    if (!constants.empty() || is_there(fixed.path)) fixed = read_safetensors(fixed.path);
    for (const auto& [name, type] : types_) {
      const bool in_file = fixed.tensors.contains(name) && !parameters.contains(name);
      if (in_file || constants.contains(name)) {
        folder_.weights.hold(name, fixed.tensor(name, type.at(1), type.dtype));
      } else {
        // Where layers compute in a narrow type, steps update float32 weights.
        const bool narrow = c10::elementSize(type.dtype) < c10::elementSize(at::kFloat) &&
                            c10::isFloatingType(type.dtype) && parameters.contains(name);
        folder_.weights.need(name, narrow ? ValueType{at::kFloat, type.sizes} : type);
      }
    }
    for (const auto& [name, type] : folder_.untrained) {
      folder_.weights.want(name, type);
      if (fixed.tensors.contains(name)) take_folded(name, fixed.tensor(name, type.at(1), type.dtype));
    }
  }

  /// A buffer whose value the graphs' constants were made of: other weights must have the same.
  void take_folded(const std::string& name, const at::Tensor& value) {
    const std::shared_ptr<WeightFiles>& files = folder_.weights.first();
    const std::string stored = files == nullptr ? "" : stored_name(*files, name, names());
    if (!stored.empty() && !folder_.weights.at(name).equal(value)) {
      throw InputError({files->path(), ""},
                       fmt::format("tensor \"{}\" has other values than the capture made constants of: "
                                   "capture the model with these weights",
                                   stored));
    }
    folder_.weights.hold(name, value);
  }

  std::string file_;
  std::string weights_;  ///< from elsewhere
  bool is_shorter_;      ///< not the folder's first manifest
  Manifest manifest_;
  ModelFolder folder_;
  FolderGraphs& graphs_;
  std::map<std::string, ValueType> types_;  ///< of weights
  std::vector<Value> bundle_;               ///< behind the layers read so far
  std::map<std::string, std::size_t> last_reader_;
  std::set<std::string> layer_names_, named_;
  std::map<std::string, std::pair<std::string, bool>>
      owner_of_;  ///< of a tensor: the last layer that names it, and whether as a parameter
};

}  // namespace

std::shared_ptr<const ModelFolder> read_model_folder(const std::string& path, const std::string& weights,
                                                     UseCompiled compiled) {
  const c10::InferenceMode normal(false);  // what is read outlives the caller's mode
  FolderGraphs graphs;
  return FolderMaker(path, kManifest, weights, graphs).make(compiled);
}

struct FolderReader::Shared {
  std::mutex mutex;
  std::map<std::tuple<std::string, std::string, UseCompiled>, std::shared_ptr<const ModelFolder>> folders;
};

std::shared_ptr<FolderReader::Shared> FolderReader::make_shared() { return std::make_shared<Shared>(); }

std::shared_ptr<const ModelFolder> FolderReader::read(const std::string& path, const std::string& weights,
                                                      UseCompiled compiled) const {
  const std::scoped_lock lock(shared_->mutex);
  std::shared_ptr<const ModelFolder>& folder = shared_->folders[{path, weights, compiled}];
  if (folder == nullptr) folder = read_model_folder(path, weights, compiled);
  return folder;
}

}  // namespace stagecraft::captured
