#pragma once

// Runs the built `stagecraft` as a user would, and keeps what it said.

#include <string>
#include <vector>

namespace stagecraft::test {

struct CommandResult {
  int code = -1;  ///< exit code; 128 + n when signal n ended it
  std::string out;
  std::string err;
};

/// `arguments` go to the binary as they are, without a shell. Standard input is empty.
[[nodiscard]] CommandResult stagecraft(const std::vector<std::string>& arguments);

/// A folder of its own under the system's temporary one, removed with everything in it at the end.
class ScratchFolder {
 public:
  ScratchFolder();
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  [[nodiscard]] std::string path(const std::string& name) const { return folder_ + "/" + name; }
  /// Writes a file and returns its path.
  std::string write(const std::string& name, const std::string& contents) const;

 private:
  std::string folder_;
};

/// Whether `part` occurs in what was said.
[[nodiscard]] inline bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

[[nodiscard]] std::string read_text_file(const std::string& path);

}  // namespace stagecraft::test
