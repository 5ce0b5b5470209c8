#include "stagecraft/models/safetensors.h"

#include "stagecraft/base/error.h"
#include "stagecraft/base/files.h"
#include "stagecraft/models/layers/functional.h"
#include "stagecraft/models/safetensors_header.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <set>

namespace stagecraft {
namespace {

std::string_view bytes_of(const at::Tensor& tensor) {
  return {static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()};
}

}  // namespace

const at::Tensor& SafetensorsFile::tensor(const std::string& name, at::IntArrayRef shape,
                                          at::ScalarType dtype) const {
  const auto found = tensors.find(name);
  if (found == tensors.end()) throw InputError({path, ""}, fmt::format("has no tensor \"{}\"", name));
  const at::Tensor& tensor = found->second;
  if (tensor.sizes() != shape || tensor.scalar_type() != dtype) {
    throw InputError({path, ""}, fmt::format("tensor \"{}\": expected {} of {}, found {} of {}", name,
                                             functional::shape_text(shape), safetensors_dtype(dtype),
                                             functional::shape_text(tensor.sizes()),
                                             safetensors_dtype(tensor.scalar_type())));
  }
  return tensor;
}

SafetensorsImage::SafetensorsImage(const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                                   const std::map<std::string, std::string>& metadata) {
  std::vector<std::pair<std::string, at::Tensor>> dense;
  std::set<std::string> names{kSafetensorsMetadata};
  for (const auto& [name, tensor] : tensors) {
    STAGECRAFT_CHECK(names.insert(name).second, "two tensors named " + name);
    dense.emplace_back(name, tensor.cpu().contiguous());
  }
  // Widest elements first, so that every tensor is aligned for readers that map the file.
  std::stable_sort(dense.begin(), dense.end(), [](const auto& a, const auto& b) {
    return a.second.element_size() > b.second.element_size();
  });

  SafetensorsHeader header{{}, metadata};
  std::uint64_t offset = 0;
  for (auto& [name, tensor] : dense) {
    header.entries.push_back(
        {name, tensor.scalar_type(), tensor.sizes().vec(), offset, offset + tensor.nbytes()});
    offset += tensor.nbytes();
    dense_.push_back(std::move(tensor));
  }
  header_ = safetensors_header_text(header);
}

std::vector<std::string_view> SafetensorsImage::pieces() const {
  std::vector<std::string_view> pieces{header_};
  for (const at::Tensor& tensor : dense_) pieces.push_back(bytes_of(tensor));
  return pieces;
}

void write_safetensors(const std::string& path,
                       const std::vector<std::pair<std::string, at::Tensor>>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  write_file_atomically(path, SafetensorsImage(tensors, metadata).pieces());
}

SafetensorsFile read_safetensors(const std::string& path) {
  StoredFilePtr in;
  if (const std::error_code error = storage().open(path, OpenFor::reading, in)) {
    throw InputError({path, ""}, "cannot be opened: " + error.message());
  }
  FileFacts facts;
  if (const std::error_code error = in->facts(facts)) {
    throw InputError({path, ""}, "cannot be read: " + error.message());
  }
  if (!facts.is_file()) throw InputError({path, ""}, "is no file");
  const std::uint64_t size = facts.bytes;
  const auto read = [&](void* to, std::uint64_t bytes) {
    for (std::uint64_t done = 0; done < bytes;) {
      std::size_t got = 0;
      const std::error_code error = in->read(static_cast<char*>(to) + done, bytes - done, got);
      if (error) throw InputError({path, ""}, "cannot be read: " + error.message());
      if (got == 0) throw InputError({path, ""}, "cannot be read to its end");
      done += got;
    }
  };

  if (size < kSafetensorsLengthBytes)
    throw InputError({path, ""}, fmt::format("is {} bytes, no safetensors file", size));
  std::array<char, kSafetensorsLengthBytes> first{};
  read(first.data(), first.size());
  const std::uint64_t length = safetensors_header_length(path, first.data(), size);
  std::string text(length, '\0');
  read(text.data(), length);
  SafetensorsHeader header = parse_safetensors_header(path, text, size - kSafetensorsLengthBytes - length);
  SafetensorsFile file{path, {}, std::move(header.metadata)};
  for (const SafetensorsEntry& entry : header.entries) {
    at::Tensor tensor = at::empty(entry.shape, entry.dtype);
    if (tensor.nbytes() > 0) read(tensor.mutable_data_ptr(), tensor.nbytes());
    file.tensors.emplace(entry.name, std::move(tensor));
  }
  return file;
}

}  // namespace stagecraft
