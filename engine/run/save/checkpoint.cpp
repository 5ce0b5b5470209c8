#include "engine/run/save/checkpoint.h"

#include "base/files.h"
#include "base/fingerprint.h"
#include "base/json.h"
#include "base/near_path.h"
#include "engine/run/save/checkpoint_files.h"
#include "engine/run/save/checkpoint_folder.h"
#include "models/tensors/safetensors.h"
#include "models/tensors/safetensors_writer.h"

#include <c10/util/accumulate.h>
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <functional>
#include <map>
#include <set>
#include <string_view>

namespace stagecraft {
namespace {

/// The file of a layer, held against the manifest when there is one, and those of the layers that own its
/// tied weights.
class LayerFiles {
 public:
  LayerFiles(const std::string& folder, const Model& model, int index, const Manifest* manifest)
      : model_(model), index_(index) {
    const auto read = [&](int layer) {
      const std::string& its = model.layers[static_cast<std::size_t>(layer)]->name();
      const std::string name = layer_file(its);
      if (manifest != nullptr) check_checkpoint_file(folder, *manifest, name);
      SafetensorsFile file = read_safetensors(folder + "/" + name);
      // Files of other frameworks may leave it out.
      const auto said = file.metadata.find("layer");
      if (said == file.metadata.end() || said->second == its) return file;
      throw InputError(
          {file.path, "/__metadata__/layer"},
          fmt::format("expected {}, the layer that the file is named for, found {}: files of two "
                      "layers were swapped or renamed",
                      json::brief(Json(its)), json::brief(Json(said->second))));
    };
    files_.emplace(index, read(index));
    for (std::size_t i = 0; i < layer().parameters().size(); ++i) {
      const int owner = owner_of(i).layer;
      if (!files_.contains(owner)) files_.emplace(owner, read(owner));
    }
  }

  [[nodiscard]] const Layer& layer() const { return *model_.layers[static_cast<std::size_t>(index_)]; }
  [[nodiscard]] const SafetensorsFile& own() const { return files_.at(index_); }
  /// Where the layer's i-th parameter lies, and its name there.
  [[nodiscard]] const SafetensorsFile& of(std::size_t i) const { return files_.at(owner_of(i).layer); }
  [[nodiscard]] std::string name_of(std::size_t i) const {
    const Tie::Holder owner = owner_of(i);
    const auto specs = model_.layers[static_cast<std::size_t>(owner.layer)]->parameters();
    return specs[static_cast<std::size_t>(owner.parameter)].name;
  }

 private:
  [[nodiscard]] Tie::Holder owner_of(std::size_t i) const {
    return model_.owner_of(index_, static_cast<int>(i));
  }

  const Model& model_;
  int index_;
  std::map<int, SafetensorsFile> files_;  ///< by layer
};

/// Parameters and buffers out of `files`, of the shapes that `state` has now.
/// `brought`: the hash of a buffer that came with the model.
void take_weights(const LayerFiles& files, LayerState& state, bool need_buffers,
                  const std::function<std::string(std::size_t)>& brought) {
  const Layer& layer = files.layer();
  const SafetensorsFile& file = files.own();
  for (std::size_t i = 0; i < state.parameters.size(); ++i) {
    at::Tensor& value = state.parameters[i];
    value = files.of(i).tensor("parameter/" + files.name_of(i), value.sizes(), value.scalar_type());
  }
  const std::vector<BufferSpec>& buffers = layer.buffers();
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    const std::string name = "buffer/" + buffers[i].name;
    at::Tensor& value = state.buffers[i];
    const auto hash = file.metadata.find(brought_key(buffers[i].name));
    if (buffers[i].brought && hash != file.metadata.end()) {
      if (hash->second != brought(i))
        throw other_frozen_weight(buffers[i].name, "the model folder", file.path);
      value = at::Tensor();  // stays as it is
      continue;
    }
    if (need_buffers || file.tensors.contains(name)) {
      value = file.tensor(name, value.sizes(), value.scalar_type());
    }
  }
}

std::int64_t optimizer_steps(const SafetensorsFile& file) {
  const auto found = file.metadata.find("optimizer_steps");
  if (found == file.metadata.end())
    throw InputError({file.path, ""}, "has no \"optimizer_steps\" in its metadata");
  const std::string& text = found->second;
  std::int64_t steps = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), steps);
  if (error != std::errc() || end != text.data() + text.size() || steps < 0) {
    throw InputError({file.path, "/__metadata__/optimizer_steps"},
                     fmt::format("expected a number of steps, found {}", json::brief(text)));
  }
  return steps;
}

/// All the tensors that the optimizer keeps and no others: with one missing it would begin anew from zeros.
OptimizerState optimizer_state(const LayerFiles& files, int index, const Tensors& values,
                               const ModelOptimizer& optimizer) {
  const SafetensorsFile& file = files.own();
  OptimizerState state;
  state.steps = optimizer_steps(file);
  state.tensors.resize(values.size());
  std::set<std::string> known;
  for (std::size_t i = 0; state.steps > 0 && i < values.size(); ++i) {
    for (const StateSpec& spec : optimizer.state_of(index, i)) {
      const std::string stored = fmt::format("optimizer/{}/{}", files.name_of(i), spec.name);
      state.tensors[i][spec.name] = files.of(i).tensor(stored, spec.shape, values[i].scalar_type());
      if (&files.of(i) == &file) known.insert(stored);
    }
  }
  for (const auto& [name, tensor] : file.tensors) {
    if (!name.starts_with("optimizer/") || known.contains(name)) continue;
    throw InputError({file.path, ""}, fmt::format("tensor \"{}\" is none of this optimizer's", name));
  }
  return state;
}

}  // namespace

void check_checkpoint_file(const std::string& checkpoint, const Manifest& manifest, const std::string& name,
                           const std::function<void()>& meanwhile) {
  const auto listed = std::find_if(manifest.files.begin(), manifest.files.end(),
                                   [&](const CheckpointFile& file) { return file.name == name; });
  if (listed == manifest.files.end()) {
    throw InputError({checkpoint + "/" + kManifestName, "/files"}, fmt::format("has no file {}", name));
  }
  const std::string path = checkpoint + "/" + name;
  constexpr const char* kRemedy = "remove the folder to go on from an older checkpoint";
  FileFacts facts;
  if (!storage().facts(path, /*follow=*/true, facts)) {  // else it is opened, which says why
    if (!facts.is_file()) throw InputError({path, ""}, fmt::format("is no file; {}", kRemedy));
    if (facts.bytes != static_cast<std::uint64_t>(listed->bytes)) {
      throw InputError({path, ""}, fmt::format("is corrupt: {} bytes, but the manifest has {}; {}",
                                               facts.bytes, listed->bytes, kRemedy));
    }
  }
  Fingerprint hash;
  std::int64_t bytes = 0;
  read_through(path, [&](std::string_view piece) {
    hash.add(piece);
    bytes += static_cast<std::int64_t>(piece.size());
    if (bytes > listed->bytes) throw InputError({path, ""}, "grows while it is read");
    if (meanwhile) meanwhile();
  });
  const std::string found = hash.text();
  if (bytes == listed->bytes && found == listed->hash) return;
  throw InputError({path, ""},
                   fmt::format("is corrupt: {} bytes with hash {}, but the manifest has {} bytes with "
                               "hash {}; {}",
                               bytes, found, listed->bytes, listed->hash, kRemedy));
}

std::string brought_key(const std::string& name) { return "brought/" + name; }

InputError other_frozen_weight(const std::string& name, const std::string& model,
                               const std::string& checkpoint) {
  return InputError({checkpoint, ""},
                    fmt::format("the frozen weight \"{}\" of {} is not the one that this was trained with: "
                                "expected the same model folder, and the same model.weights",
                                name, model));
}

std::string layer_file(const std::string& layer) {
  constexpr std::size_t kLongest =
      200;  // of 255 that file systems take, less a suffix and what some of them add
  constexpr std::size_t kKept = 120;
  std::string name;
  for (const char c : layer) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-' || c == '.';
    name += plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  if (name.size() > kLongest) name = name.substr(0, kKept) + "~" + fingerprint(layer);
  return name + ".safetensors";
}

std::uint64_t checkpoint_bytes(const RunSetup& setup) {
  const Model& model = setup.inputs().model;
  const double states = setup.inputs().optimizer->bytes_per_parameter_byte();
  const at::ScalarType full = model.precision.full;
  double bytes = 0;
  for (std::size_t index = 0; index < model.layers.size(); ++index) {
    const LayerPtr& layer = model.layers[index];
    const std::vector<ParameterSpec>& specs = layer->parameters();
    std::int64_t parameters = 0;
    for (std::size_t i = 0; i < specs.size(); ++i) {
      if (model.owns(static_cast<int>(index), static_cast<int>(i)))
        parameters += c10::multiply_integers(specs[i].shape);
    }
    for (const BufferSpec& spec : layer->buffers()) {
      if (spec.brought) continue;  // of which it has a hash
      bytes += static_cast<double>(c10::multiply_integers(spec.shape)) *
               static_cast<double>(c10::elementSize(spec.dtype.value_or(full)));
    }
    bytes += static_cast<double>(parameters) * (1 + states) * static_cast<double>(c10::elementSize(full));
  }
  return static_cast<std::uint64_t>(bytes);
}

Saved save_checkpoint(const RunSetup& setup, const RunPaths& paths, const Worker& worker,
                      Transport& transport, const SaveRequest& request, std::string& unfinished) {
  const bool first = transport.rank() == Rank{0};
  const std::string folder = paths.checkpoints();
  Saved saved;
  /// Nobody writes into the folder any more.
  const auto given_up = [&](Rank rank, const std::string& what) {
    if (first) {
      for (std::string& left : sweep_checkpoints(folder)) saved.notes.push_back(std::move(left));
    }
    unfinished.clear();
    saved.failure = {rank, what};
    return saved;
  };

  std::string failure;
  if (first) {
    saved.notes = sweep_checkpoints(folder);
    failure = why_not([&] { unfinished = begin_checkpoint(folder, request.step); });
  }
  failure = transport.broadcast(failure);
  if (!failure.empty()) return given_up(Rank{0}, failure);
  unfinished = transport.broadcast(unfinished);

  Json mine;
  mine["files"] = Json::array();
  mine["failure"] = why_not([&] {
    request.first();
    SavedLayer layer;
    mine["files"] = write_layers(setup, layers_saved_by(setup, transport.rank()), unfinished, [&](int index) {
      layer = saved_layer(worker, setup.inputs().model, index);
      return std::cref(layer);
    });
  });
  const std::vector<std::string> all = transport.all_gather_text(mine.dump());
  Manifest manifest = manifest_of(setup, paths.run, request.step, request.validation_owed);
  manifest.loss_scale = worker.loss_scale();
  manifest.given_rate = request.given_rate;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const Json its = Json::parse(all[rank]);
    failure = its.at("failure").get<std::string>();
    if (!failure.empty()) return given_up(Rank{static_cast<int>(rank)}, failure);
    for (const Json& file : its.at("files")) manifest.files.push_back(json::read<CheckpointFile>(file, {}));
  }

  if (first) {
    failure = why_not([&] {
      write_compared(unfinished + "/" + kManifestName, {manifest_text(manifest)});
      std::string note = publish_checkpoint(folder, unfinished, request.step);
      if (!note.empty()) saved.notes.push_back(std::move(note));
    });
  }
  failure = transport.broadcast(failure);  // which others wait for longer than they would in a step
  if (!failure.empty()) return given_up(Rank{0}, failure);
  unfinished.clear();
  saved.folder = checkpoint_path(folder, request.step);
  if (first && request.older == OlderCheckpoints::go) {
    for (std::string& old : remove_older_checkpoints(folder, setup.config().checkpoint.keep, paths.run)) {
      saved.notes.push_back(std::move(old));
    }
  }
  return saved;
}

void note_validation(const std::string& checkpoint) {
  Manifest manifest = read_manifest(checkpoint);
  manifest.validation_owed = false;
  const std::string text = manifest_text(manifest);
  write_file_atomically(checkpoint + "/" + kManifestName, {text}, Links::replace,
                        [&](const std::string& aside) { compare_with_file(aside, {text}); });
}

void load_checkpoint(const std::string& checkpoint, const Model& model, const ModelOptimizer& optimizer,
                     Worker& worker) {
  const Manifest manifest = read_manifest(checkpoint);
  for (const int index : worker.layers()) {
    const Layer& layer = *model.layers[static_cast<std::size_t>(index)];
    if (!has_state(layer)) continue;
    const LayerFiles files(checkpoint, model, index, &manifest);
    LayerState state = worker.state(index);
    take_weights(files, state, /*need_buffers=*/true,
                 [&](std::size_t i) { return worker.hash_of_brought(index, i); });
    state.optimizer = optimizer_state(files, index, state.parameters, optimizer);
    worker.set_state(index, std::move(state));
  }
  if (manifest.loss_scale) worker.set_loss_scale(*manifest.loss_scale);
}

void load_weights(const std::string& folder, const Model& model, Worker& worker) {
  if (!is_folder(folder))
    throw InputError({folder, ""}, "no such folder (initial_checkpoint)" + path_meant(folder));
  std::optional<Manifest> manifest;
  if (is_there(folder + "/" + kManifestName)) manifest = read_manifest(folder);
  for (const int index : worker.layers()) {
    const Layer& layer = *model.layers[static_cast<std::size_t>(index)];
    if (!has_state(layer)) continue;
    const LayerFiles files(folder, model, index, manifest ? &*manifest : nullptr);
    LayerState state = worker.state(index);
    take_weights(files, state, /*need_buffers=*/false,
                 [&](std::size_t i) { return worker.hash_of_brought(index, i); });
    worker.set_state(index, std::move(state));
  }
}

}  // namespace stagecraft
