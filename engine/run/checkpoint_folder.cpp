#include "stagecraft/engine/run/checkpoint_folder.h"

#include "stagecraft/base/files.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <string_view>

namespace stagecraft {
namespace {

constexpr const char* kComplete = "complete";
constexpr const char* kAside = ".part";
constexpr std::string_view kPrefix = "step-";

/// The step in a checkpoint's name; nothing for any other name.
std::optional<std::int64_t> step_of(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  std::int64_t step = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
  if (error != std::errc() || end != name.data() + name.size() || name.front() == '-') return std::nullopt;
  return step;
}

bool is_complete(const std::string& checkpoint) { return is_there(checkpoint + "/" + kComplete); }

/// Folders with a step's name, by step, complete or not.
std::map<std::int64_t, std::string> steps_in(const std::string& folder) {
  std::map<std::int64_t, std::string> found;
  if (!is_there(folder)) return found;
  for (const std::string& name : names_in(folder)) {
    if (const auto step = step_of(name)) found[*step] = folder + "/" + name;
  }
  return found;
}

/// A checkpoint goes by losing its name first, for good: half of one must never be there under it.
void remove(const std::string& folder, const std::string& checkpoint, std::vector<std::string>& notes) {
  const auto note = [&](const std::string& why) {
    notes.push_back(fmt::format("{} cannot be removed: {}", checkpoint, why));
  };
  const std::string aside = unique_name(checkpoint) + kAside;
  if (const std::error_code error = storage().rename(checkpoint, aside)) return note(error.message());
  try {
    sync_folder(folder);
  } catch (const InputError& error) {
    return note(error.what());
  }
  if (const std::error_code error = remove_tree(aside)) note(error.message());
}

/// What a killed process was writing.
void remove_parts(const std::string& folder, std::vector<std::string>& notes) {
  for (const std::string& name : names_in(folder)) {
    if (!name.ends_with(kAside)) continue;
    const std::string path = folder + "/" + name;
    if (const std::error_code error = remove_tree(path)) {
      notes.push_back(fmt::format("{} cannot be removed: {}", path, error.message()));
    }
  }
}

}  // namespace

std::string checkpoint_path(const std::string& folder, std::int64_t step) {
  return fmt::format("{}/{}{:08}", folder, kPrefix, step);
}

std::vector<std::string> complete_checkpoints(const std::string& folder) {
  std::vector<std::string> paths;
  for (const auto& [step, path] : steps_in(folder)) {
    if (is_complete(path)) paths.push_back(path);
  }
  return paths;
}

std::string newest_checkpoint(const std::string& folder) {
  const std::vector<std::string> found = complete_checkpoints(folder);
  return found.empty() ? "" : found.back();
}

std::string begin_checkpoint(const std::string& folder, std::int64_t step) {
  std::string aside = unique_name(checkpoint_path(folder, step)) + kAside;
  try {
    make_folder(aside);
  } catch (const InputError&) {
    (void)storage().remove(aside);  // made, and not synced
    throw;
  }
  return aside;
}

std::string publish_checkpoint(const std::string& folder, const std::string& aside, std::int64_t step) {
  std::string path = checkpoint_path(folder, step);
  write_new_file(aside + "/" + kComplete, {});
  sync_folder(aside);
  const auto rename = [](const std::string& from, const std::string& to) {
    if (const std::error_code error = storage().rename(from, to)) {
      throw InputError({to, ""}, "cannot be written: " + error.message());
    }
  };
  std::string before;  // of a step that is made again
  if (is_there(path)) rename(path, before = unique_name(path) + kAside);
  rename(aside, path);
  sync_folder(folder);
  if (!before.empty()) (void)remove_tree(before);
  return path;
}

std::vector<std::string> sweep_checkpoints(const std::string& folder) {
  std::vector<std::string> notes;
  if (!is_there(folder)) return notes;
  remove_parts(folder, notes);
  for (const auto& [step, path] : steps_in(folder)) {
    try {
      if (is_complete(path)) {
        remove_parts(path, notes);  // of a manifest that was being replaced
      } else {
        remove(folder, path, notes);
      }
    } catch (const InputError& error) {
      notes.emplace_back(error.what());
    }
  }
  return notes;
}

std::vector<std::string> remove_older_checkpoints(const std::string& folder, std::int64_t keep) {
  std::vector<std::string> notes, complete;
  if (keep == 0) return notes;
  try {
    for (const auto& [step, path] : steps_in(folder)) {
      try {
        if (is_complete(path)) complete.push_back(path);
      } catch (const InputError& error) {
        notes.emplace_back(error.what());
      }
    }
  } catch (const InputError& error) {
    notes.emplace_back(error.what());
  }
  for (std::size_t i = 0; i + static_cast<std::size_t>(keep) < complete.size(); ++i) {
    remove(folder, complete[i], notes);
  }
  return notes;
}

std::vector<std::string> tidy_checkpoints(const std::string& folder, std::int64_t keep) {
  std::vector<std::string> notes = remove_older_checkpoints(folder, keep);
  for (std::string& note : sweep_checkpoints(folder)) notes.push_back(std::move(note));
  return notes;
}

}  // namespace stagecraft
