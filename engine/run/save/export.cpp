#include "engine/run/save/export.h"

#include "base/file_kind.h"
#include "base/files.h"
#include "base/json.h"
#include "engine/run/save/checkpoint_folder.h"
#include "engine/run/save/export_tensors.h"
#include "engine/run/save/run_dir.h"
#include "models/model.h"

#include <c10/core/InferenceMode.h>
#include <c10/util/accumulate.h>
#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

namespace stagecraft {
namespace {

constexpr const char* kConfigName = "config.json";

/// What is exported: a checkpoint, and the run's config, which may be missing beside it.
struct ExportSource {
  std::string checkpoint, config;
};

/// A model folder has a manifest.json as well.
bool is_checkpoint(const std::string& folder) {
  const std::string path = folder + "/" + kManifestName;
  if (!is_there(path)) return false;
  const Json manifest = json::parse_file(path);
  return manifest.is_object() && manifest.contains("training") && manifest.contains("hash");
}

ExportSource source_of(const ExportRequest& request) {
  const std::string& from = request.from;
  if (!is_folder(from))
    throw InputError({from, ""}, "is no folder; expected a run directory or a checkpoint");
  if (is_checkpoint(from)) {
    if (request.step) throw InputError({from, ""}, "is one checkpoint: --step is for run directories");
    return {from, from + "/../../" + kConfigName};
  }
  const RunPaths paths{from};
  std::string checkpoint = newest_checkpoint(paths.checkpoints());
  if (checkpoint.empty()) {
    const std::string kind = kind_of_folder(from);
    const bool other = !is_folder(paths.checkpoints()) && kind != "a folder";
    throw InputError({from, ""},
                     other ? fmt::format("is {}; a run directory or a checkpoint is needed here", kind)
                           : "has no complete checkpoint in checkpoints/");
  }
  if (request.step) {
    const std::string wanted = checkpoint_path(paths.checkpoints(), *request.step);
    std::string steps;
    bool found = false;
    for (const std::string& complete : complete_checkpoints(paths.checkpoints())) {
      found = found || complete == wanted;
      steps += fmt::format("{}{}", steps.empty() ? "" : ", ", read_manifest(complete).step);
    }
    if (!found) {
      throw InputError({from, ""},
                       fmt::format("has no checkpoint of step {}; it has those of {}", *request.step, steps));
    }
    checkpoint = wanted;
  }
  return {checkpoint, paths.config()};
}

/// The model folder of a run of a captured model.
std::shared_ptr<const captured::ModelFolder> model_of(const ExportRequest& request,
                                                      const ExportSource& source) {
  std::string path = request.model, weights;
  if (is_there(source.config)) {
    const Json config = json::parse_file(source.config);
    const Json model = config.is_object() ? config.value("model", Json::object()) : Json::object();
    const auto text = [&](const char* key) {
      return model.is_object() && model.contains(key) && model[key].is_string()
                 ? model[key].get<std::string>()
                 : std::string();
    };
    if (path.empty()) path = text("path");
    weights = text("weights");
  }
  if (path.empty()) {
    throw InputError({source.config, ""}, "is missing, which says where the model folder is: give --model");
  }
  if (!is_there(path + "/manifest.json")) {
    throw InputError({path, ""}, "the run's model folder is not here: give --model FOLDER");
  }
  if (!weights.empty() && !is_there(weights)) weights.clear();  // what is missing then is said by name
  return captured::read_model_folder(path, weights);
}

struct Shard {
  std::vector<StreamedTensor> tensors;
  std::uint64_t bytes = 0;
};

/// In order, each as full as it gets. A tensor that is larger than `most` has a file of its own.
std::vector<Shard> shards_of(std::vector<StreamedTensor> tensors, std::uint64_t most) {
  std::vector<Shard> shards(1);
  for (StreamedTensor& tensor : tensors) {
    const std::uint64_t bytes = tensor.bytes();
    if (most > 0 && !shards.back().tensors.empty() && shards.back().bytes + bytes > most)
      shards.emplace_back();
    shards.back().bytes += bytes;
    shards.back().tensors.push_back(std::move(tensor));
  }
  return shards;
}

/// Where nearly all numbers are of one type, that one.
at::ScalarType most_of(const std::vector<StreamedTensor>& tensors) {
  std::map<at::ScalarType, std::uint64_t> bytes;
  for (const StreamedTensor& tensor : tensors) {
    if (c10::isFloatingType(tensor.dtype)) bytes[tensor.dtype] += tensor.bytes();
  }
  at::ScalarType most = at::kFloat;
  for (const auto& [dtype, sum] : bytes) {
    if (sum > bytes[most]) most = dtype;
  }
  return most;
}

std::optional<at::ScalarType> dtype_of(ExportType type) {
  switch (type) {
    case ExportType::float32:
      return at::kFloat;
    case ExportType::bfloat16:
      return at::kBFloat16;
    case ExportType::float16:
      return at::kHalf;
    case ExportType::as_they_are:
      break;
  }
  return std::nullopt;
}

/// Copies what the capture put beside the model. The config's dtype is that of the weights: from_pretrained would
/// convert them to another.
void copy_companions(const std::string& from, const std::string& to, const std::string& dtype) {
  if (!is_there(from)) return;
  for (const std::string& name : names_in(from)) {
    FileFacts facts;
    const bool weights =
        name.ends_with(".safetensors") || name.ends_with(".index.json") || name == kExportRecord;
    if (weights || storage().facts(from + "/" + name, /*follow=*/false, facts) || !facts.is_file()) continue;
    std::string contents = read_file(from + "/" + name);
    if (name == kConfigName) {
      Json config = json::parse_text(contents, from + "/" + name);
      if (config.is_object()) {
        config[config.contains("torch_dtype") ? "torch_dtype" : "dtype"] = dtype;
        contents = config.dump(2) + "\n";
      }
    }
    write_new_file(to + "/" + name, {contents});
  }
}

std::string shard_name(const std::string& stem, std::size_t index, std::size_t count) {
  return count == 1 ? stem + ".safetensors"
                    : fmt::format("{}-{:05}-of-{:05}.safetensors", stem, index + 1, count);
}

}  // namespace

ExportRecord export_weights(const ExportRequest& request, const ExportProgress& progress) {
  const c10::InferenceMode guard;
  const ExportSource source = source_of(request);
  const Manifest manifest = read_manifest(source.checkpoint);
  const Json::json_pointer family("/model/family");
  const bool is_captured = manifest.training.contains(family) && manifest.training[family] == "captured";
  std::shared_ptr<const captured::ModelFolder> model;
  if (is_captured) model = model_of(request, source);
  if (!is_captured && !request.model.empty()) {
    throw InputError(
        {"--model", ""},
        fmt::format("is for captured models, and {} is of a built-in one: leave it out", request.from));
  }
  if (request.adapters && model == nullptr) {
    throw InputError({"--adapters", ""},
                     fmt::format("is for captured models, and {} is of a built-in one", request.from));
  }
  if (request.adapters && request.shard_bytes > 0)
    throw InputError({"--adapters", ""}, "go into one file: leave out --shard");
  ExportFolder folder(request.out);  // before hashes are read, which takes its time

  const auto reading = [&] {
    if (progress) progress(0, 0);
  };
  std::vector<StreamedTensor> all = model ? captured_tensors(source.checkpoint, manifest, *model, reading)
                                          : layer_tensors(source.checkpoint, manifest, reading);
  if (request.adapters) all = adapter_tensors(*model, std::move(all));
  std::vector<StreamedTensor> tensors = converted(std::move(all), dtype_of(request.type));
  ExportRecord record;
  record.checkpoint = source.checkpoint;
  record.step = manifest.step;
  if (manifest.step > 0 && manifest.training.contains(Json::json_pointer("/optimizer/ema_decay")))
    record.averaged = true;
  record.model = model                                ? model->name
                 : manifest.training.contains(family) ? manifest.training[family].get<std::string>()
                                                      : "";
  record.dtype = Precision(most_of(tensors)).name();  // as configs of transformers have it
  for (const StreamedTensor& tensor : tensors) {
    ++record.tensors;
    record.numbers += c10::multiply_integers(tensor.shape);
    record.bytes += static_cast<std::int64_t>(tensor.bytes());
  }

  const std::vector<Shard> shards = shards_of(std::move(tensors), request.shard_bytes);
  Json map = Json::object();
  std::uint64_t done = 0;
  const auto written = [&](std::uint64_t bytes) {
    if (progress) progress(done += bytes, static_cast<std::uint64_t>(record.bytes));
  };
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const std::string name = shard_name(request.adapters ? "adapter_model" : "model", i, shards.size());
    for (const StreamedTensor& tensor : shards[i].tensors) map[tensor.name] = name;
    write_safetensors_streamed(folder.aside() + "/" + name, shards[i].tensors, {{"format", "pt"}}, written);
  }
  if (shards.size() > 1) {
    const Json index{{"metadata", {{"total_size", record.bytes}, {"total_parameters", record.numbers}}},
                     {"weight_map", map}};
    write_new_file(folder.aside() + "/model.safetensors.index.json", {index.dump(2) + "\n"});
  }
  if (request.adapters) {
    const std::string config = "adapter_config.json";
    write_new_file(folder.aside() + "/" + config,
                   {read_file(fmt::format("{}/{}/{}", model->path, kAdaptersFolder, config))});
  } else if (model) {
    copy_companions(model->path + "/hugging_face", folder.aside(), record.dtype);
  }
  for (const std::string& name : names_in(folder.aside())) {
    FileFacts facts;
    if (const std::error_code error = storage().facts(folder.aside() + "/" + name, /*follow=*/false, facts)) {
      throw unreadable(folder.aside() + "/" + name, error);
    }
    record.files.push_back({name, static_cast<std::int64_t>(facts.bytes)});
  }
  folder.publish(record);
  return record;
}

std::optional<std::uint64_t> shard_bytes(const std::string& text) {
  constexpr std::array<std::pair<const char*, double>, 10> kUnits{{{"", 1},
                                                                   {"B", 1},
                                                                   {"KB", 1e3},
                                                                   {"MB", 1e6},
                                                                   {"GB", 1e9},
                                                                   {"TB", 1e12},
                                                                   {"KiB", 1024.0},
                                                                   {"MiB", 1048576.0},
                                                                   {"GiB", 1073741824.0},
                                                                   {"TiB", 1099511627776.0}}};
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string unit(end, text.data() + text.size());
  if (unit.starts_with(' ')) unit.erase(0, 1);
  for (const auto& [name, factor] : kUnits) {
    const double bytes = number * factor;
    if (unit == name && error == std::errc() && bytes >= 1 && bytes < 1e18) {
      return static_cast<std::uint64_t>(std::llround(bytes));
    }
  }
  return std::nullopt;
}

}  // namespace stagecraft
