#include "base/input_path.h"

#include "base/files.h"
#include "base/near_path.h"

#include <fmt/format.h>

#include <filesystem>

namespace stagecraft {
namespace fs = std::filesystem;

std::string nothing_at(const std::string& path, const std::string& config) {
  std::error_code error;
  const fs::path whole = fs::absolute(path, error).lexically_normal();
  std::string text = fmt::format("{}: no such file or folder", path);
  if (!error && whole != fs::path(path)) text += fmt::format(" ({})", whole.string());
  const fs::path beside = fs::path(folder_of(config)) / path;
  if (fs::path(path).is_relative() && beside.lexically_normal() != fs::path(path).lexically_normal() &&
      fs::exists(beside, error)) {
    text += fmt::format(
        "; paths begin at the folder in which the command is started, and {} lies beside the config: "
        "write that, or start there",
        beside.string());
    return text;
  }
  return text + path_meant(path);
}

void require_there(const std::string& path, const InputPlace& place) {
  if (!is_there(path)) throw InputError(place, nothing_at(path, place.file));
}

}  // namespace stagecraft
