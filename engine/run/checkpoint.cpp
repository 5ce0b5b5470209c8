#include "engine/run/checkpoint.h"

#include "engine/run/run_dir.h"
#include "models/safetensors.h"
#include "schedules/base/files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <map>
#include <string_view>

namespace stagecraft {
namespace {

namespace fs = std::filesystem;

constexpr const char* kManifest = "manifest.json";
constexpr const char* kComplete = "complete";
constexpr const char* kAside = ".part";
constexpr std::string_view kPrefix = "step-";

bool has_state(const Layer& layer) { return !layer.parameters().empty() || !layer.buffers().empty(); }

/// Schedule, cuts and widths: what an asynchronous run must go on with, since its delays follow from them.
Json pipeline_of(const Plan& plan) {
  Json json;
  json["schedule"] = json::write(plan.schedule);
  json["first_layers"] = Json::array();
  for (const StagePlan& stage : plan.stages) json["first_layers"].push_back(stage.first_layer);
  const Placement placement = plan.placement();
  for (int s = 0; placement.replicated() && s < placement.stages(); ++s) {
    json["replicas"].push_back(placement.width(StageId{s}));
  }
  return json;
}

CheckpointFile measured(const std::string& folder, const std::string& name) {
  std::ifstream in(folder + "/" + name, std::ios::binary);
  if (!in) throw InputError({folder + "/" + name, ""}, "is missing");
  CheckpointFile file{name, 0, ""};
  Fingerprint hash;
  std::vector<char> buffer(1 << 20);
  while (in.read(buffer.data(), static_cast<std::streamsize>(buffer.size())), in.gcount() > 0) {
    hash.add({buffer.data(), static_cast<std::size_t>(in.gcount())});
    file.bytes += in.gcount();
  }
  file.hash = hash.text();
  return file;
}

CheckpointFile write_layer(const std::string& folder, const Layer& layer, const LayerState& state) {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  const std::vector<ParameterSpec> parameters = layer.parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    tensors.emplace_back("parameter/" + parameters[i].name, state.parameters[i]);
  }
  const std::vector<BufferSpec> buffers = layer.buffers();
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    tensors.emplace_back("buffer/" + buffers[i].name, state.buffers[i]);
  }
  for (std::size_t i = 0; i < state.optimizer.tensors.size(); ++i) {
    for (const auto& [name, tensor] : state.optimizer.tensors[i]) {
      tensors.emplace_back(fmt::format("optimizer/{}/{}", parameters[i].name, name), tensor);
    }
  }
  const std::string name = layer_file(layer.name());
  write_safetensors(folder + "/" + name, tensors,
                    {{"format", "pt"}, {"optimizer_steps", fmt::format("{}", state.optimizer.steps)}});
  return measured(folder, name);
}

void rename_folder(const std::string& from, const std::string& to) {
  std::error_code error;
  fs::remove_all(to, error);  // of a step that is made again after a resume from an older one
  fs::rename(from, to, error);
  if (error) throw InputError({to, ""}, fmt::format("cannot be written: {}", error.message()));
}

/// The step in a checkpoint's name; nothing for any other name.
std::optional<std::int64_t> step_of(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  std::int64_t step = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
  if (error != std::errc() || end != name.data() + name.size()) return std::nullopt;
  return step;
}

/// Complete checkpoints, oldest first.
std::vector<std::string> complete_checkpoints(const std::string& folder) {
  std::map<std::int64_t, std::string> found;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const auto step = step_of(entry.path().filename().native());
    if (step && fs::exists(entry.path() / kComplete)) found[*step] = entry.path();
  }
  std::vector<std::string> paths;
  for (const auto& [step, path] : found) paths.push_back(path);
  return paths;
}

void remove_older(const std::string& folder, std::int64_t keep) {
  const std::vector<std::string> found = complete_checkpoints(folder);
  if (keep == 0 || static_cast<std::int64_t>(found.size()) <= keep) return;
  for (std::size_t i = 0; i < found.size() - static_cast<std::size_t>(keep); ++i) {
    std::error_code ignored;  // it stays and is tried again after the next one
    fs::remove(fs::path(found[i]) / kComplete, ignored);
    fs::remove_all(found[i], ignored);
  }
}

Manifest manifest_of(const RunSetup& setup, std::int64_t step, bool validation_owed) {
  const std::int64_t epoch = steps_per_epoch(setup.shape());
  Manifest manifest;
  manifest.step = step;
  manifest.epoch = step / epoch;
  manifest.epoch_step = step % epoch;
  manifest.validation_owed = validation_owed;
  manifest.training = training_identity(setup.config(), setup.shape().steps, setup.synchronous());
  manifest.threads = setup.config().threads_per_rank;
  manifest.synchronous = setup.synchronous();
  manifest.pipeline = pipeline_of(setup.plan());
  manifest.data = setup.materials().data->fingerprint();
  manifest.model = setup.materials().model.fingerprint;
  return manifest;
}

std::string first_difference(const Json& before, const Json& now) {
  const Json patch = Json::diff(before, now);
  if (patch.empty()) return "";
  const auto pointer = patch.front().at("path").get<std::string>();
  const auto value = [&](const Json& json) {
    const Json::json_pointer at(pointer);
    return json.contains(at) ? json::brief(json.at(at)) : std::string("nothing");
  };
  return fmt::format("{}: {} there, {} in this run", pointer, value(before), value(now));
}

/// The layer's file, held against the manifest when there is one.
SafetensorsFile read_layer(const std::string& folder, const Layer& layer, const Manifest* manifest) {
  const std::string name = layer_file(layer.name());
  const std::string path = folder + "/" + name;
  if (manifest != nullptr) {
    const auto listed = std::find_if(manifest->files.begin(), manifest->files.end(),
                                     [&](const CheckpointFile& file) { return file.name == name; });
    if (listed == manifest->files.end()) {
      throw InputError({folder + "/" + kManifest, "/files"},
                       fmt::format("has no file of layer {}", layer.name()));
    }
    const CheckpointFile found = measured(folder, name);
    if (found.bytes != listed->bytes || found.hash != listed->hash) {
      throw InputError({path, ""},
                       fmt::format("is corrupt: {} bytes with hash {}, but the manifest has {} bytes with "
                                   "hash {}; remove the folder to go on from an older checkpoint",
                                   found.bytes, found.hash, listed->bytes, listed->hash));
    }
  }
  return read_safetensors(path);
}

/// Parameters and buffers out of `file`, of the shapes that `state` has now.
void take_weights(const SafetensorsFile& file, const Layer& layer, LayerState& state, bool need_buffers) {
  const std::vector<ParameterSpec> parameters = layer.parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    at::Tensor& value = state.parameters[i];
    value = file.tensor("parameter/" + parameters[i].name, value.sizes(), value.scalar_type());
  }
  const std::vector<BufferSpec> buffers = layer.buffers();
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    const std::string name = "buffer/" + buffers[i].name;
    at::Tensor& value = state.buffers[i];
    if (need_buffers || file.tensors.contains(name)) {
      value = file.tensor(name, value.sizes(), value.scalar_type());
    }
  }
}

OptimizerState optimizer_state(const SafetensorsFile& file, const Layer& layer) {
  OptimizerState state;
  const std::vector<ParameterSpec> parameters = layer.parameters();
  state.tensors.resize(parameters.size());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const std::string prefix = fmt::format("optimizer/{}/", parameters[i].name);
    for (const auto& [name, tensor] : file.tensors) {
      if (name.starts_with(prefix)) state.tensors[i][name.substr(prefix.size())] = tensor;
    }
  }
  const auto steps = file.metadata.find("optimizer_steps");
  if (steps == file.metadata.end() || steps->second.empty() ||
      steps->second.find_first_not_of("0123456789") != std::string::npos) {
    throw InputError({file.path, ""}, "has no \"optimizer_steps\" in its metadata");
  }
  state.steps = std::stoll(steps->second);
  return state;
}

}  // namespace

std::string layer_file(const std::string& layer) {
  std::string name;
  for (const char c : layer) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-' || c == '.';
    name += plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return name + ".safetensors";
}

std::string save_checkpoint(const RunSetup& setup, const std::string& folder, const Worker& worker,
                            Transport& transport, std::int64_t step, bool validation_owed) {
  const std::string final_name = fmt::format("{}/{}{:08}", folder, kPrefix, step);
  const std::string aside = final_name + kAside;
  const bool first = transport.rank() == Rank{0};
  if (first) {
    std::error_code ignored;
    fs::remove_all(aside, ignored);  // left by a run that was killed
    make_folder(aside);
  }
  transport.barrier();
  Json mine = Json::array();
  for (const StageId stage : setup.placement().stages_of(transport.rank())) {
    if (setup.placement().ranks[stage.index()].front() != transport.rank()) continue;  // replicas are equal
    const auto [begin, end] = setup.layers_of_stages()[stage.index()];
    for (int layer = begin; layer < end; ++layer) {
      const Layer& that = *setup.materials().model.layers[static_cast<std::size_t>(layer)];
      if (has_state(that)) mine.push_back(json::write(write_layer(aside, that, worker.state(layer))));
    }
  }
  const std::vector<std::string> all = transport.all_gather_text(mine.dump());
  if (!first) return final_name;
  Manifest manifest = manifest_of(setup, step, validation_owed);
  manifest.loss_scale = worker.loss_scale();
  for (std::size_t r = 0; r < all.size(); ++r) {
    for (const Json& file : Json::parse(all[r]))
      manifest.files.push_back(json::read<CheckpointFile>(file, {}));
  }
  write_json_file(aside + "/" + kManifest, json::write(manifest));
  rename_folder(aside, final_name);
  write_file_atomically(final_name + "/" + kComplete, "");
  remove_older(folder, setup.config().checkpoint.keep);
  return final_name;
}

void note_validation(const std::string& checkpoint) {
  Manifest manifest = read_manifest(checkpoint);
  manifest.validation_owed = false;
  write_json_file(checkpoint + "/" + kManifest, json::write(manifest));
}

std::string newest_checkpoint(const std::string& folder) {
  const std::vector<std::string> found = complete_checkpoints(folder);
  return found.empty() ? "" : found.back();
}

Manifest read_manifest(const std::string& checkpoint) {
  return json::read_file<Manifest>(checkpoint + "/" + kManifest);
}

void check_resume(const Manifest& manifest, const std::string& checkpoint, const RunConfig& config,
                  const Materials& materials, const Plan& plan) {
  const auto refuse = [&](const std::string& why) {
    throw InputError({checkpoint, ""}, "this run cannot go on from there: " + why);
  };
  const bool synchronous = find_schedule(plan.schedule.name).synchronous;
  if (manifest.synchronous && !synchronous) {
    refuse(fmt::format("its schedule was synchronous, {} is not", plan.schedule.name));
  }
  const std::int64_t steps = run_shape(config, *materials.data, synchronous).steps;
  const Json identity = training_identity(config, steps, manifest.synchronous);
  if (const std::string what = first_difference(manifest.training, identity); !what.empty()) refuse(what);
  if (manifest.data != materials.data->fingerprint()) refuse("the data files have changed");
  if (manifest.model != materials.model.fingerprint) refuse("the model has changed");
  const std::string what = first_difference(manifest.pipeline, pipeline_of(plan));
  if (!manifest.synchronous && !what.empty()) {
    refuse(fmt::format("an asynchronous run goes on with its own pipeline only ({})", what));
  }
}

void load_checkpoint(const std::string& checkpoint, const Model& model, Worker& worker) {
  const Manifest manifest = read_manifest(checkpoint);
  for (const int index : worker.layers()) {
    const Layer& layer = *model.layers[static_cast<std::size_t>(index)];
    if (!has_state(layer)) continue;
    const SafetensorsFile file = read_layer(checkpoint, layer, &manifest);
    LayerState state = worker.state(index);
    take_weights(file, layer, state, /*need_buffers=*/true);
    state.optimizer = optimizer_state(file, layer);
    worker.set_state(index, std::move(state));
  }
  if (manifest.loss_scale) worker.set_loss_scale(*manifest.loss_scale);
}

void load_weights(const std::string& folder, const Model& model, Worker& worker) {
  if (!fs::is_directory(folder)) throw InputError({folder, ""}, "no such folder (initial_checkpoint)");
  std::optional<Manifest> manifest;
  if (fs::exists(folder + "/" + kManifest)) manifest = read_manifest(folder);
  for (const int index : worker.layers()) {
    const Layer& layer = *model.layers[static_cast<std::size_t>(index)];
    if (!has_state(layer)) continue;
    const SafetensorsFile file = read_layer(folder, layer, manifest ? &*manifest : nullptr);
    LayerState state = worker.state(index);
    take_weights(file, layer, state, /*need_buffers=*/false);
    worker.set_state(index, std::move(state));
  }
}

}  // namespace stagecraft
