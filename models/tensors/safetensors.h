#pragma once

// Reads weight files in the safetensors format (github.com/huggingface/safetensors): eight bytes with the length
// of a JSON header, little-endian; the header, {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0,
// 24]}, ...} with optional text under "__metadata__"; then the tensors' bytes, densely, without gaps.

#include "base/storage.h"
#include "models/tensors/safetensors_header.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>

namespace stagecraft {

/// A file that stays open: its header is read, a tensor's bytes are read when somebody asks for them. (They are not
/// mapped: a file that is cut off, or a disk that fails, would end the process.) Threads: any, once made.
class StoredSafetensors {
 public:
  /// Strict: throws InputError, naming the file and the tensor, for a missing or truncated file, a malformed
  /// header, an unknown dtype, sizes that do not match their offsets, offsets that overlap, leave gaps or lie
  /// outside.
  explicit StoredSafetensors(std::string path);

  [[nodiscard]] const std::string& path() const { return path_; }
  /// By name.
  [[nodiscard]] const std::map<std::string, SafetensorsEntry>& entries() const { return entries_; }
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const { return metadata_; }
  /// On the CPU, with memory of its own. Throws InputError where there is no such tensor, or it cannot be read.
  [[nodiscard]] at::Tensor tensor(const std::string& name) const;

  /// The file, and where the tensors' bytes begin in it: entries count from there.
  [[nodiscard]] const std::shared_ptr<const StoredFile>& file() const { return file_; }
  [[nodiscard]] std::uint64_t data_begin() const { return data_begin_; }

 private:
  void read(std::uint64_t offset, void* to, std::size_t bytes) const;

  std::string path_;
  std::shared_ptr<const StoredFile> file_;
  std::uint64_t data_begin_ = 0;
  std::map<std::string, SafetensorsEntry> entries_;
  std::map<std::string, std::string> metadata_;
};

/// All of a file.
struct SafetensorsFile {
  std::string path;
  std::map<std::string, at::Tensor> tensors;  ///< on the CPU, each with memory of its own
  std::map<std::string, std::string> metadata;

  /// Throws InputError, naming the file, where there is no such tensor or it has another shape or dtype.
  [[nodiscard]] const at::Tensor& tensor(const std::string& name, at::IntArrayRef shape,
                                         at::ScalarType dtype) const;
};

/// As strict as StoredSafetensors.
[[nodiscard]] SafetensorsFile read_safetensors(const std::string& path);

}  // namespace stagecraft
