#pragma once

// A safetensors file that lies mapped in memory: its header is read, a tensor's bytes come from the disk when
// somebody reads them.

#include "stagecraft/models/safetensors_header.h"

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <string>

namespace stagecraft {

class MappedSafetensors {
 public:
  /// Strict as read_safetensors (safetensors.h).
  explicit MappedSafetensors(std::string path);

  [[nodiscard]] const std::string& path() const { return path_; }
  /// By name.
  [[nodiscard]] const std::map<std::string, SafetensorsEntry>& entries() const { return entries_; }
  [[nodiscard]] const std::map<std::string, std::string>& metadata() const { return metadata_; }
  /// On the CPU; shares the file's memory, which it keeps mapped and which nobody may write to. Throws InputError
  /// where there is no such tensor.
  [[nodiscard]] at::Tensor tensor(const std::string& name) const;

 private:
  std::string path_;
  std::shared_ptr<const char> contents_;
  const char* data_ = nullptr;  ///< behind the header
  std::map<std::string, SafetensorsEntry> entries_;
  std::map<std::string, std::string> metadata_;
};

}  // namespace stagecraft
