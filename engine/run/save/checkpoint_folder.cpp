#include "engine/run/save/checkpoint_folder.h"

#include "base/files.h"
#include "engine/records/metrics/manifest.h"

#include <fmt/format.h>

#include <charconv>
#include <map>
#include <optional>
#include <string_view>

namespace stagecraft {
namespace {

constexpr std::string_view kPrefix = "step-";

std::string name_of(std::int64_t step) { return fmt::format("{}{:08}", kPrefix, step); }

/// The step whose checkpoint has this name; nothing for any other name.
std::optional<std::int64_t> step_of(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const std::string_view digits = name.substr(kPrefix.size());
  std::int64_t step = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  if (error != std::errc() || step < 0 || name != name_of(step)) return std::nullopt;
  return step;
}

/// Of what is being written here: a checkpoint, or the try to save before a run begins.
bool is_aside(std::string_view name) {
  const std::string_view whole = named_aside(name);
  return whole == "probe" || step_of(whole);
}

/// Links not followed.
FileFacts facts_of(const std::string& path) {
  FileFacts facts;
  if (const std::error_code error = storage().facts(path, /*follow=*/false, facts)) {
    throw unreadable(path, error);
  }
  return facts;
}

bool is_complete(const std::string& checkpoint) {
  return facts_of(checkpoint).is_folder() && is_there(checkpoint + "/" + kManifestName);
}

/// What has a step's name, by step, complete or not.
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
  const std::string aside = name_aside(checkpoint);
  if (const std::error_code error = storage().rename(checkpoint, aside)) return note(error.message());
  try {
    sync_folder(folder);
  } catch (const InputError& error) {
    return note(error.what());
  }
  if (const std::error_code error = remove_tree(aside)) note(error.message());
}

/// Gives what is at `path` another name.
std::string make_room(const std::string& path) {
  int number = 1;
  const auto earlier = [&] { return fmt::format("{}.earlier-{}", path, number); };
  FileFacts facts;
  while (!storage().facts(earlier(), /*follow=*/false, facts)) ++number;
  if (const std::error_code error = storage().rename(path, earlier())) throw unwritable(earlier(), error);
  return fmt::format("{} was there already, and is {} now", path, earlier());
}

}  // namespace

std::string checkpoint_path(const std::string& folder, std::int64_t step) {
  return fmt::format("{}/{}", folder, name_of(step));
}

void set_aside_later_checkpoints(const std::string& folder, std::int64_t step) {
  bool moved = false;
  for (const auto& [its, path] : steps_in(folder)) {
    if (its <= step || !is_complete(path)) continue;
    (void)make_room(path);
    moved = true;
  }
  if (moved) sync_folder(folder);
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
  require_own_folder(folder);
  std::string aside = name_aside(checkpoint_path(folder, step));
  try {
    make_folder(aside);
  } catch (const InputError&) {
    (void)storage().remove(aside);  // made, and not synced
    throw;
  }
  return aside;
}

std::string publish_checkpoint(const std::string& folder, const std::string& aside, std::int64_t step) {
  const std::string path = checkpoint_path(folder, step);
  sync_folder(aside);
  FileFacts facts;
  std::string note;
  if (!storage().facts(path, /*follow=*/false, facts)) note = make_room(path);
  if (const std::error_code error = storage().rename(aside, path)) throw unwritable(path, error);
  sync_folder(folder);
  return note;
}

std::vector<std::string> strangers_in(const std::string& folder) {
  std::vector<std::string> notes;
  for (const std::string& name : names_in(folder)) {
    const std::string path = folder + "/" + name;
    if (!name.starts_with(kPrefix) || is_aside(name) || (step_of(name) && is_complete(path))) continue;
    notes.push_back(
        step_of(name) && is_folder(path)
            ? fmt::format("{} has no {}, so it is no whole checkpoint: nothing goes on from it, and it is "
                          "left as it is",
                          path, kManifestName)
            : fmt::format("{} is no checkpoint of a run (a folder step-NNNNNNNN with a {}): it is left as "
                          "it is",
                          path, kManifestName));
  }
  return notes;
}

std::vector<std::string> sweep_checkpoints(const std::string& folder) {
  std::vector<std::string> notes;
  if (!is_there(folder)) return notes;
  const unsigned owner = facts_of(folder).owner;
  for (const std::string& name : names_in(folder)) {
    const std::string path = folder + "/" + name;
    try {
      if (step_of(name) && is_complete(path)) {
        sweep_asides(path + "/" + kManifestName, /*alone=*/true);  // of one that was being replaced
      }
      if (!is_aside(name)) continue;
      const FileFacts facts = facts_of(path);
      if (!facts.is_folder() || facts.owner != owner) continue;
      if (const std::error_code error = remove_tree(path)) {
        notes.push_back(fmt::format("{} cannot be removed: {}", path, error.message()));
      }
    } catch (const InputError& error) {
      notes.emplace_back(error.what());
    }
  }
  return notes;
}

std::vector<std::string> remove_older_checkpoints(const std::string& folder, std::int64_t keep,
                                                  const std::string& run) {
  std::vector<std::string> notes, ours;
  if (keep == 0) return notes;
  try {
    for (const auto& [step, path] : steps_in(folder)) {
      try {
        if (is_complete(path) && read_manifest(path).run == run) ours.push_back(path);
      } catch (const InputError& error) {
        notes.emplace_back(error.what());
      }
    }
  } catch (const InputError& error) {
    notes.emplace_back(error.what());
  }
  for (std::size_t i = 0; i + static_cast<std::size_t>(keep) < ours.size(); ++i) {
    remove(folder, ours[i], notes);
  }
  return notes;
}

std::vector<std::string> tidy_checkpoints(const std::string& folder, std::int64_t keep,
                                          const std::string& run) {
  std::vector<std::string> notes = remove_older_checkpoints(folder, keep, run);
  for (std::string& note : sweep_checkpoints(folder)) notes.push_back(std::move(note));
  return notes;
}

}  // namespace stagecraft
