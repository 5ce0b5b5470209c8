#pragma once

// Where targets put their input when what they try reads files: a folder of the process in the temporary
// directory, which scripts/fuzz.sh puts in memory and removes.

#include <cstdint>
#include <string>

namespace stagecraft::fuzz {

class ScratchFolder {
 public:
  ScratchFolder();
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  [[nodiscard]] std::string path(const std::string& name = "") const { return folder_ + name; }
  /// The path of a file that holds these bytes and nothing else.
  std::string write(const std::string& name, const std::string& bytes) const;
  [[nodiscard]] std::string read(const std::string& name) const;
  void remove(const std::string& name) const;

 private:
  std::string folder_;  ///< ends in a slash
};

}  // namespace stagecraft::fuzz
