#include "engine/run/save/export_tensors.h"

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "engine/run/save/checkpoint.h"
#include "models/tensors/safetensors.h"
#include "models/tensors/shape_text.h"

#include <ATen/ops/isfinite.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <memory>
#include <set>
#include <string_view>
#include <utility>

namespace stagecraft {
namespace {

using StoredPtr = std::shared_ptr<const StoredSafetensors>;

StoredPtr checked_file(const std::string& checkpoint, const Manifest& manifest, const std::string& name,
                       const std::function<void()>& meanwhile) {
  check_checkpoint_file(checkpoint, manifest, name, meanwhile);
  return std::make_shared<const StoredSafetensors>(checkpoint + "/" + name);
}

StreamedTensor stored_tensor(std::string name, const StoredPtr& file, const SafetensorsEntry& entry) {
  return {std::move(name), entry.dtype, entry.shape,
          [file, stored = entry.name] { return file->tensor(stored); }};
}

/// `stored` in a layer's file, which must have the shape that the model says.
StreamedTensor layer_state(const StoredPtr& file, const std::string& stored, std::string name,
                           const captured::ValueType& type) {
  const auto found = file->entries().find(stored);
  if (found == file->entries().end() || found->second.shape != type.at(1)) {
    throw InputError(
        {file->path(), ""},
        fmt::format("tensor \"{}\": the model folder says {}, found {}: is it of another model?", stored,
                    type.text(), found == file->entries().end() ? "none" : shape_text(found->second.shape)));
  }
  return stored_tensor(std::move(name), file, found->second);
}

/// A frozen weight: the model folder has it, and the checkpoint its hash. Nothing where the checkpoint has its values.
std::optional<StreamedTensor> frozen_tensor(const StoredPtr& file, const captured::ModelFolder& model,
                                            const std::string& name, const captured::ValueType& type) {
  const auto hash = file->metadata().find(brought_key(name));
  if (hash == file->metadata().end()) return std::nullopt;
  at::Tensor value = model.weights.at(name);
  if (hash_of(value) != hash->second) throw other_frozen_weight(name, model.path, file->path());
  return StreamedTensor{name, type.dtype, type.at(1), [value] { return value; }};
}

/// Where a layer's file has a parameter: its average, if the run averages weights and has made a step.
std::string stored_parameter(const StoredSafetensors& file, const std::string& name) {
  const std::string average = averaged_name(name);
  return file.entries().contains(average) ? average : "parameter/" + name;
}

/// "block0%2Fattention.safetensors" -> "block0/attention". What is no such code stays.
std::string layer_named(const std::string& file) {
  std::string name;
  const std::size_t end = file.size() - std::string_view(".safetensors").size();
  for (std::size_t i = 0; i < end; ++i) {
    unsigned code = 0;
    const char* const digits = file.data() + i + 1;
    if (file[i] == '%' && i + 2 < end && std::from_chars(digits, digits + 2, code, 16).ptr == digits + 2) {
      name += static_cast<char>(code);
      i += 2;
    } else {
      name += file[i];
    }
  }
  return name;
}

}  // namespace

std::string averaged_name(const std::string& parameter) {
  return fmt::format("optimizer/{}/{}", parameter, kAveragedWeights);
}

std::vector<StreamedTensor> captured_tensors(const std::string& checkpoint, const Manifest& manifest,
                                             const captured::ModelFolder& model,
                                             const std::function<void()>& meanwhile) {
  const bool hugging_face = is_there(model.path + "/hugging_face");
  std::vector<StreamedTensor> tensors;
  std::map<std::string, StreamedTensor> known;
  const auto add = [&](StreamedTensor tensor) {
    known[tensor.name] = tensor;
    tensors.push_back(std::move(tensor));
  };
  for (const captured::FolderLayer& layer : model.layers) {
    if (layer.parameters.empty() && layer.buffers.empty()) continue;
    const StoredPtr file = checked_file(checkpoint, manifest, layer_file(layer.name), meanwhile);
    const captured::Graph& graph = layer.replay->graph();
    for (std::size_t i = 0; i < layer.parameters.size(); ++i) {
      const std::string& name = layer.parameters[i];
      if (known.contains(name)) continue;  // tied: the first layer's file has it
      add(layer_state(file, stored_parameter(*file, name), name, graph.parameters[i]));
    }
    for (std::size_t i = 0; i < layer.buffers.size(); ++i) {
      const std::string& name = layer.buffers[i];
      if (model.weights.holds(name)) continue;  // not persistent
      // Buffers that no training changes may be of several layers.
      if (known.contains(name)) continue;
      const auto frozen = frozen_tensor(file, model, name, graph.buffers[i]);
      add(frozen ? *frozen : layer_state(file, "buffer/" + name, name, graph.buffers[i]));
    }
  }
  for (const auto& [name, type] : model.untrained) {
    add({name, type.dtype, type.at(1), [&model, name = name] { return model.weights.at(name); }});
  }
  for (const auto& [second, first] : model.same_as) {
    if (known.contains(second)) continue;  // a copy that went its own way
    if (hugging_face) continue;            // whose files have a tied tensor once
    const auto found = known.find(first);
    if (found == known.end()) continue;
    StreamedTensor tensor = found->second;
    tensor.name = second;
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

std::vector<StreamedTensor> adapter_tensors(const captured::ModelFolder& model,
                                            std::vector<StreamedTensor> tensors) {
  const std::string path = model.path + "/" + kAdaptersFolder + "/tensors.json";
  if (!is_there(path)) {
    throw InputError({model.path, ""},
                     "has no adapters: it was captured from a module without a PeftModel, or by an earlier "
                     "stagecraft-capture; leave out --adapters");
  }
  const Json json = json::parse_file(path);
  std::vector<StreamedTensor> named;
  const auto wrong = [&](const std::string& pointer, const std::string& what) {
    return InputError({path, pointer}, what);
  };
  if (!json.is_object() || !json.contains("tensors") || !json["tensors"].is_object()) {
    throw wrong("/tensors", "expected an object of names");
  }
  for (const auto& [name, of] : json["tensors"].items()) {
    if (!of.is_string()) throw wrong("/tensors/" + name, "expected the name of a tensor");
    const auto its = std::ranges::find(tensors, of.get<std::string>(), &StreamedTensor::name);
    if (its == tensors.end())
      throw wrong("/tensors/" + name, fmt::format("the model has no tensor \"{}\"", of.get<std::string>()));
    named.push_back(*its);
    named.back().name = name;
  }
  return named;
}

std::vector<StreamedTensor> layer_tensors(const std::string& checkpoint, const Manifest& manifest,
                                          const std::function<void()>& meanwhile) {
  constexpr std::string_view kState[] = {"parameter/", "buffer/"};
  std::vector<StreamedTensor> tensors;
  std::set<std::string> layers;
  for (const CheckpointFile& listed : manifest.files) {
    const StoredPtr file = checked_file(checkpoint, manifest, listed.name, meanwhile);
    const auto said = file->metadata().find("layer");
    const std::string layer = said == file->metadata().end() ? layer_named(listed.name) : said->second;
    if (!layers.insert(layer).second) {
      throw InputError(
          {file->path(), "/__metadata__/layer"},
          fmt::format("another file of the checkpoint is of layer {} too", json::brief(Json(layer))));
    }
    for (const std::string_view state : kState) {
      for (const auto& [stored, entry] : file->entries()) {
        if (!stored.starts_with(state)) continue;
        const std::string name = stored.substr(state.size());
        const bool parameter = state == kState[0];
        tensors.push_back(stored_tensor(
            layer + "." + name, file, parameter ? file->entries().at(stored_parameter(*file, name)) : entry));
      }
    }
  }
  return tensors;
}

std::vector<StreamedTensor> converted(std::vector<StreamedTensor> tensors,
                                      std::optional<at::ScalarType> dtype) {
  if (!dtype) return tensors;
  for (StreamedTensor& tensor : tensors) {
    if (!c10::isFloatingType(tensor.dtype) || tensor.dtype == *dtype) continue;
    tensor.dtype = *dtype;
    tensor.make = [make = std::move(tensor.make), to = *dtype, name = tensor.name] {
      at::Tensor value = make().to(to);
      if (to == at::kHalf && !at::isfinite(value).all().item<bool>()) {
        throw InputError(fmt::format("tensor \"{}\" holds numbers that float16 cannot: use bfloat16", name));
      }
      return value;
    };
  }
  return tensors;
}

}  // namespace stagecraft
