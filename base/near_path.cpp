#include "base/near_path.h"

#include "base/nearest.h"

#include <fmt/format.h>

#include <filesystem>
#include <vector>

namespace stagecraft {
namespace fs = std::filesystem;
namespace {

constexpr std::size_t kMostNames = 1000;

/// Of the names in the folder; an ending that two names have in common makes them no nearer.
std::string nearest_in(const fs::path& folder, const fs::path& name) {
  std::vector<std::string> stems, others;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end;
       !error && at != end && stems.size() + others.size() < kMostNames; at.increment(error)) {
    const fs::path found = at->path().filename();
    const bool alike = found.extension() == name.extension();
    (alike ? stems : others).push_back((alike ? found.stem() : found).string());
  }
  const std::string stem = nearest(name.stem().string(), stems);
  return stem.empty() ? nearest(name.string(), others) : stem + name.extension().string();
}

}  // namespace

std::string path_meant(const std::string& path) {
  std::error_code error;
  fs::path there;  // as far as there is something
  for (const fs::path& name : fs::path(path)) {
    const fs::path next = there / name;
    if (fs::exists(fs::symlink_status(next, error))) {
      there = next;
      continue;
    }
    const std::string found = nearest_in(there.empty() ? "." : there, name);
    return found.empty() ? "" : fmt::format("; did you mean \"{}\"?", (there / found).string());
  }
  return "";
}

std::string not_opened(const std::string& path, const std::error_code& error) {
  return fmt::format("cannot be opened: {}{}", error.message(),
                     error == std::errc::no_such_file_or_directory ? path_meant(path) : "");
}

}  // namespace stagecraft
