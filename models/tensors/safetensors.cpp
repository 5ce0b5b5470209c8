#include "models/tensors/safetensors.h"

#include "base/error.h"
#include "base/files.h"
#include "base/near_path.h"
#include "models/tensors/shape_text.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <array>
#include <utility>

namespace stagecraft {

StoredSafetensors::StoredSafetensors(std::string path) : path_(std::move(path)) {
  StoredFilePtr file;
  if (const std::error_code error = storage().open(path_, OpenFor::reading, file)) {
    throw InputError({path_, ""}, not_opened(path_, error));
  }
  FileFacts facts;
  if (const std::error_code error = file->facts(facts)) throw unreadable(path_, error);
  if (!facts.is_file()) throw InputError({path_, ""}, "is no file");
  file_ = std::move(file);
  if (facts.bytes < kSafetensorsLengthBytes) {
    throw InputError({path_, ""}, fmt::format("is {} bytes, no safetensors file", facts.bytes));
  }
  std::array<char, kSafetensorsLengthBytes> first{};
  read(0, first.data(), first.size());
  std::string text(safetensors_header_length(path_, first.data(), facts.bytes), '\0');
  read(first.size(), text.data(), text.size());
  data_begin_ = first.size() + text.size();
  SafetensorsHeader header = parse_safetensors_header(path_, text, facts.bytes - data_begin_);
  metadata_ = std::move(header.metadata);
  for (SafetensorsEntry& entry : header.entries) entries_.emplace(entry.name, entry);
}

void StoredSafetensors::read(std::uint64_t offset, void* to, std::size_t bytes) const {
  const std::string what = read_exactly(*file_, offset, to, bytes);
  if (!what.empty()) throw InputError({path_, ""}, what);
}

at::Tensor StoredSafetensors::tensor(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) throw InputError({path_, ""}, fmt::format("has no tensor \"{}\"", name));
  const SafetensorsEntry& entry = found->second;
  at::Tensor tensor = at::empty(entry.shape, entry.dtype);
  if (tensor.nbytes() > 0) read(data_begin_ + entry.begin, tensor.mutable_data_ptr(), tensor.nbytes());
  return tensor;
}

const at::Tensor& SafetensorsFile::tensor(const std::string& name, at::IntArrayRef shape,
                                          at::ScalarType dtype) const {
  const auto found = tensors.find(name);
  if (found == tensors.end()) throw InputError({path, ""}, fmt::format("has no tensor \"{}\"", name));
  const at::Tensor& tensor = found->second;
  if (tensor.sizes() != shape || tensor.scalar_type() != dtype) {
    throw InputError({path, ""},
                     fmt::format("tensor \"{}\": expected {} of {}, found {} of {}", name, shape_text(shape),
                                 safetensors_dtype(dtype), shape_text(tensor.sizes()),
                                 safetensors_dtype(tensor.scalar_type())));
  }
  return tensor;
}

SafetensorsFile read_safetensors(const std::string& path) {
  const StoredSafetensors stored(path);
  SafetensorsFile file{path, {}, stored.metadata()};
  for (const auto& [name, entry] : stored.entries()) file.tensors.emplace(name, stored.tensor(name));
  return file;
}

}  // namespace stagecraft
