#include "engine/run/save/checkpoint_files.h"

#include "base/files.h"
#include "base/fingerprint.h"
#include "engine/run/save/checkpoint.h"
#include "models/tensors/safetensors_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

namespace stagecraft {
namespace {

/// Tied weights and what the optimizer keeps of them are in their owner's file alone.
CheckpointFile write_layer(const std::string& folder, const Model& model, int index,
                           const SavedLayer& saved) {
  const LayerState& state = saved.state;
  const Layer& layer = *model.layers[static_cast<std::size_t>(index)];
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  const std::vector<ParameterSpec>& parameters = layer.parameters();
  const auto owns = [&](std::size_t i) { return model.owns(index, static_cast<int>(i)); };
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (owns(i)) tensors.emplace_back("parameter/" + parameters[i].name, state.parameters[i]);
  }
  std::map<std::string, std::string> metadata{{"format", "pt"},
                                              {"layer", layer.name()},
                                              {"optimizer_steps", fmt::format("{}", state.optimizer.steps)}};
  const std::vector<BufferSpec>& buffers = layer.buffers();
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    if (buffers[i].brought) {
      metadata[brought_key(buffers[i].name)] = saved.hashes[i];
    } else {
      tensors.emplace_back("buffer/" + buffers[i].name, state.buffers[i]);
    }
  }
  for (std::size_t i = 0; i < state.optimizer.tensors.size(); ++i) {
    if (!owns(i)) continue;
    for (const auto& [name, tensor] : state.optimizer.tensors[i]) {
      tensors.emplace_back(fmt::format("optimizer/{}/{}", parameters[i].name, name), tensor);
    }
  }
  const SafetensorsImage image(tensors, metadata);
  CheckpointFile file{layer_file(layer.name()), 0, ""};
  Fingerprint hash;
  for (const std::string_view piece : image.pieces()) {
    hash.add(piece);
    file.bytes += static_cast<std::int64_t>(piece.size());
  }
  file.hash = hash.text();
  write_compared(folder + "/" + file.name, image.pieces());
  return file;
}

}  // namespace

bool has_state(const Layer& layer) { return !layer.parameters().empty() || !layer.buffers().empty(); }

void read_through(const std::string& path, const std::function<void(std::string_view)>& take) {
  StoredFilePtr file;
  const std::error_code closed = storage().open(path, OpenFor::reading, file);
  if (closed == std::errc::no_such_file_or_directory) throw InputError({path, ""}, "is missing");
  if (closed) throw InputError({path, ""}, "cannot be opened: " + closed.message());
  FileFacts facts;
  if (const std::error_code unknown = file->facts(facts)) throw unreadable(path, unknown);
  if (!facts.is_file()) throw InputError({path, ""}, "is no file");
  std::vector<char> buffer(1 << 20);
  for (std::size_t got = 1; got > 0;) {
    if (const std::error_code error = file->read(buffer.data(), buffer.size(), got)) {
      throw InputError({path, ""}, "cannot be read: " + error.message());
    }
    take({buffer.data(), got});
  }
}

void compare_with_file(const std::string& path, std::vector<std::string_view> pieces) {
  std::size_t piece = 0;
  bool same = true;
  read_through(path, [&](std::string_view found) {
    while (same && !found.empty()) {
      while (piece < pieces.size() && pieces[piece].empty()) ++piece;
      same = piece < pieces.size();
      if (!same) return;
      const std::size_t bytes = std::min(found.size(), pieces[piece].size());
      same = found.substr(0, bytes) == pieces[piece].substr(0, bytes);
      found.remove_prefix(bytes);
      pieces[piece].remove_prefix(bytes);
    }
  });
  same =
      same && std::all_of(pieces.begin(), pieces.end(), [](std::string_view rest) { return rest.empty(); });
  if (same) return;
  throw InputError({path, ""}, "is not what was written to it: the disk or this machine's memory fails");
}

void write_compared(const std::string& path, const std::vector<std::string_view>& pieces) {
  write_new_file(path, pieces);
  compare_with_file(path, pieces);
}

SavedLayer saved_layer(const Worker& worker, const Model& model, int index) {
  SavedLayer saved{worker.state(index, /*brought=*/false), {}};
  const std::vector<BufferSpec>& buffers = model.layers[static_cast<std::size_t>(index)]->buffers();
  saved.hashes.resize(buffers.size());
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    if (buffers[i].brought) saved.hashes[i] = worker.hash_of_brought(index, i);
  }
  return saved;
}

std::vector<int> layers_saved_by(const RunSetup& setup, Rank rank) {
  std::vector<int> layers;
  for (const StageId stage : setup.placement().stages_of(rank)) {
    if (setup.placement().ranks[stage.index()].front() != rank) continue;
    const auto [begin, end] = setup.layers_of_stages()[stage.index()];
    for (int layer = begin; layer < end; ++layer) {
      if (has_state(*setup.inputs().model.layers[static_cast<std::size_t>(layer)])) layers.push_back(layer);
    }
  }
  return layers;
}

Json write_layers(const RunSetup& setup, const std::vector<int>& layers, const std::string& folder,
                  const std::function<const SavedLayer&(int layer)>& saved) {
  Json files = Json::array();
  for (const int layer : layers)
    files.push_back(json::write(write_layer(folder, setup.inputs().model, layer, saved(layer))));
  sync_folder(folder);
  return files;
}

std::string why_not(const std::function<void()>& work) {
  try {
    work();
    return "";
  } catch (const InputError& error) {
    return error.what();
  }
}

Json pipeline_of(const Plan& plan) {
  Json json;
  json["schedule"] = json::write(plan.schedule);
  json["first_layers"] = Json::array();
  for (const StagePlan& stage : plan.stages) json["first_layers"].push_back(stage.first_layer);
  const Placement placement = plan.placement();
  for (int s = 0; placement.replicated() && s < placement.stages(); ++s) {
    json["replicas"].push_back(placement.replicas(StageId{s}));
  }
  return json;
}

Manifest manifest_of(const RunSetup& setup, const std::string& run, std::int64_t step, bool validation_owed) {
  const std::int64_t epoch = steps_per_epoch(setup.shape());
  Manifest manifest;
  manifest.run = run;
  manifest.step = step;
  manifest.epoch = step / epoch;
  manifest.epoch_step = step % epoch;
  manifest.validation_owed = validation_owed;
  manifest.training = training_identity(setup.config(), setup.shape().steps, setup.synchronous());
  manifest.threads = setup.config().threads_per_rank;
  manifest.synchronous = setup.synchronous();
  manifest.pipeline = pipeline_of(setup.plan());
  manifest.changes = setup.start().changes;
  manifest.data = setup.inputs().data->fingerprint();
  manifest.model = setup.inputs().model.fingerprint;
  return manifest;
}

}  // namespace stagecraft
