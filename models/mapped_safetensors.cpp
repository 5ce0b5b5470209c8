#include "stagecraft/models/mapped_safetensors.h"

#include "stagecraft/base/error.h"
#include "stagecraft/base/storage.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <fmt/format.h>

#include <cstdint>
#include <cstring>
#include <utility>

namespace stagecraft {

MappedSafetensors::MappedSafetensors(std::string path) : path_(std::move(path)) {
  StoredFilePtr file;
  if (const std::error_code error = storage().open(path_, OpenFor::reading, file)) {
    throw InputError({path_, ""}, "cannot be opened: " + error.message());
  }
  FileFacts facts;
  if (const std::error_code error = file->facts(facts)) {
    throw InputError({path_, ""}, "cannot be read: " + error.message());
  }
  if (!facts.is_file()) throw InputError({path_, ""}, "is no file");
  std::size_t bytes = 0;
  if (const std::error_code error = file->map(contents_, bytes)) {
    throw InputError({path_, ""}, "cannot be mapped: " + error.message());
  }
  if (bytes < kSafetensorsLengthBytes) {
    throw InputError({path_, ""}, fmt::format("is {} bytes, no safetensors file", bytes));
  }
  const std::uint64_t length = safetensors_header_length(path_, contents_.get(), bytes);
  const char* text = contents_.get() + kSafetensorsLengthBytes;
  SafetensorsHeader header =
      parse_safetensors_header(path_, {text, length}, bytes - kSafetensorsLengthBytes - length);
  data_ = text + length;
  metadata_ = std::move(header.metadata);
  for (SafetensorsEntry& entry : header.entries) entries_.emplace(entry.name, entry);
}

at::Tensor MappedSafetensors::tensor(const std::string& name) const {
  const auto found = entries_.find(name);
  if (found == entries_.end()) throw InputError({path_, ""}, fmt::format("has no tensor \"{}\"", name));
  const SafetensorsEntry& entry = found->second;
  const char* begin = data_ + entry.begin;
  const std::uint64_t bytes = entry.end - entry.begin;
  const bool aligned = reinterpret_cast<std::uintptr_t>(begin) % c10::elementSize(entry.dtype) == 0;
  if (bytes > 0 && aligned) {
    return at::from_blob(
        const_cast<char*>(begin), entry.shape, [kept = contents_](void*) {},
        at::TensorOptions(at::kCPU).dtype(entry.dtype));
  }
  at::Tensor copy = at::empty(entry.shape, entry.dtype);
  if (bytes > 0) std::memcpy(copy.mutable_data_ptr(), begin, bytes);
  return copy;
}

}  // namespace stagecraft
