#pragma once

// A safetensors file that stays open: its header is read, a tensor's bytes are read when somebody asks for them.
// (They are not mapped: a file that is cut off, or a disk that fails, would end the process.)

#include "stagecraft/base/storage.h"
#include "stagecraft/models/safetensors_header.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>

namespace stagecraft {

/// Threads: any, once made.
class StoredSafetensors {
 public:
  /// Strict as read_safetensors (safetensors.h).
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

}  // namespace stagecraft
