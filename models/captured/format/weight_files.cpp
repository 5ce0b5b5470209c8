#include "models/captured/format/weight_files.h"

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/nearest.h"
#include "base/plain_name.h"
#include "models/tensors/shape_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace stagecraft::captured {

/// An index file's keys.
struct WeightIndex {
  Json metadata;
  std::map<std::string, std::string> weight_map;
};
template <class V>
void describe(V& v, WeightIndex& index) {
  v.optional("metadata", index.metadata, "of the writer");
  v.required("weight_map", index.weight_map, "file by tensor");
}

namespace {

constexpr std::string_view kSafetensors = ".safetensors", kIndex = ".safetensors.index.json";

/// What `path` means: itself, or the first of the names that a folder has.
std::string file_at(const std::string& path) {
  if (!is_folder(path)) return path;
  for (const char* stem : {"/model", "/weights"}) {
    for (const std::string_view ending : {kSafetensors, kIndex}) {
      std::string file = path + stem;
      file += ending;
      if (is_there(file)) return file;
    }
  }
  throw InputError({path, ""},
                   "has neither model.safetensors nor model.safetensors.index.json; transformers writes one "
                   "of them with save_pretrained");
}

std::string type_of(const SafetensorsEntry& entry) {
  return fmt::format("{} of {}", shape_text(entry.shape), safetensors_dtype(entry.dtype));
}

bool turns_into(at::ScalarType from, at::ScalarType to) {
  return from == to || (c10::isFloatingType(from) && c10::isFloatingType(to));
}

}  // namespace

WeightFiles::WeightFiles(const std::string& path) : path_(file_at(path)) {
  if (!path_.ends_with(kIndex)) {
    const auto file = std::make_shared<const StoredSafetensors>(path_);
    files_[path_] = file;
    for (const auto& [name, entry] : file->entries()) file_of_[name] = path_;
    return;
  }
  const auto index = json::read_file<WeightIndex>(path_);
  for (const auto& [name, file] : index.weight_map) {
    if (!is_plain_name(file, kSafetensors)) {
      throw InputError(
          {path_, "/weight_map/" + name},
          fmt::format("expected a .safetensors file beside the index, found {}", json::brief(file)));
    }
    file_of_[name] = folder_of(path_) + "/" + file;
  }
}

const StoredSafetensors& WeightFiles::file(const std::string& tensor) {
  const std::string& path = file_of_.at(tensor);
  std::shared_ptr<const StoredSafetensors>& file = files_[path];
  if (file == nullptr) file = std::make_shared<const StoredSafetensors>(path);
  return *file;
}

void WeightFiles::check(const std::string& name, const ValueType& type) {
  const StoredSafetensors& its = file(name);
  const auto found = its.entries().find(name);
  if (found == its.entries().end()) {
    throw InputError({its.path(), ""}, fmt::format("has no tensor \"{}\", though {} says so", name, path_));
  }
  const SafetensorsEntry& entry = found->second;
  if (entry.shape == type.at(1) && turns_into(entry.dtype, type.dtype)) return;
  throw InputError({its.path(), ""},
                   fmt::format("tensor \"{}\": expected {}, found {}", name, type.text(), type_of(entry)));
}

at::Tensor WeightFiles::tensor(const std::string& name, const ValueType& type) const {
  return files_.at(file_of_.at(name))->tensor(name).to(type.dtype);
}

std::string stored_name(const WeightFiles& files, const std::string& name, const WeightNames& names) {
  std::vector<std::string> candidates{name};
  if (const auto second = names.same_as.find(name); second != names.same_as.end()) {
    candidates.push_back(second->second);
  }
  for (const auto& [first, second] : names.same_as) {
    if (second == name) candidates.push_back(first);
  }
  for (const std::string& candidate : candidates) {
    if (files.contains(candidate)) return candidate;
    if (names.prefix.empty()) continue;
    const bool has = candidate.starts_with(names.prefix);
    std::string other = has ? candidate.substr(names.prefix.size()) : names.prefix + candidate;
    if (files.contains(other)) return other;
  }
  return "";
}

ModelWeights::ModelWeights(std::shared_ptr<WeightFiles> first, std::shared_ptr<WeightFiles> folder,
                           WeightNames names, std::string missing)
    : first_(std::move(first)),
      folder_(std::move(folder)),
      names_(std::move(names)),
      missing_(std::move(missing)) {}

bool ModelWeights::locate(const std::shared_ptr<WeightFiles>& files, const std::string& name,
                          const ValueType& type) {
  if (files == nullptr) return false;
  const std::string stored = stored_name(*files, name, names_);
  if (stored.empty()) return false;
  files->check(stored, type);
  located_[name] = {files, stored, type};
  return true;
}

bool ModelWeights::headless() const {
  if (first_ == nullptr || !names_.has_head) return false;
  const auto at = first_->file_of().lower_bound(names_.prefix);
  return at == first_->file_of().end() || !at->first.starts_with(names_.prefix);
}

void ModelWeights::need(const std::string& name, const ValueType& type) {
  if (locate(first_, name, type)) return;
  const bool of_head = headless() && !name.starts_with(names_.prefix);
  if ((first_ == nullptr || of_head) && locate(folder_, name, type)) return;
  const std::shared_ptr<WeightFiles>& files = first();
  if (files == nullptr) return;  // at() says so: who only plans needs none
  std::vector<std::string> known;
  for (const auto& [stored, file] : files->file_of()) known.push_back(stored);
  throw InputError({files->path(), ""},
                   fmt::format("has no tensor \"{}\"{}", name, did_you_mean(name, known)));
}

void ModelWeights::want(const std::string& name, const ValueType& type) {
  if (!locate(first_, name, type)) (void)locate(folder_, name, type);
}

at::Tensor ModelWeights::at(const std::string& name) const {
  if (const auto held = held_.find(name); held != held_.end()) return held->second;
  const auto found = located_.find(name);
  if (found == located_.end()) throw InputError(fmt::format("{} (tensor \"{}\")", missing_, name));
  const Located& located = found->second;
  return located.files->tensor(located.stored, located.type);
}

std::vector<std::string> ModelWeights::unread() const {
  if (first() == nullptr) return {};
  std::set<std::string> read;
  for (const auto& [name, located] : located_) {
    if (located.files == first()) read.insert(located.stored);
  }
  std::vector<std::string> names;
  for (const auto& [name, file] : first()->file_of()) {
    if (!read.contains(name)) names.push_back(name);
  }
  return names;
}

}  // namespace stagecraft::captured
