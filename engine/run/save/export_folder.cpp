#include "engine/run/save/export_folder.h"

#include "base/files.h"
#include "base/json.h"

#include <fmt/format.h>

#include <set>
#include <utility>

namespace stagecraft {
namespace {

std::string without_slash(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  return path;
}

/// Throws InputError unless nothing is lost with the folder.
void check_replaceable(const std::string& path) {
  FileFacts facts;
  if (const std::error_code error = storage().facts(path, /*follow=*/false, facts)) {
    if (error == std::errc::no_such_file_or_directory) return;
    throw unreadable(path, error);
  }
  if (!facts.is_folder()) throw InputError({path, ""}, "exists and is no folder: name another one");
  const std::vector<std::string> names = names_in(path);
  if (names.empty()) return;
  std::set<std::string> ours;
  if (is_there(path + "/" + kExportRecord)) {
    ours.insert(kExportRecord);
    for (ExportedFile& file : json::read_file<ExportRecord>(path + "/" + kExportRecord).files) {
      ours.insert(std::move(file.name));
    }
  }
  for (const std::string& name : names) {
    if (ours.contains(name)) continue;
    throw InputError({path, ""}, fmt::format("holds {}, which no export wrote: name another folder", name));
  }
}

void move_folder(const std::string& from, const std::string& to) {
  if (const std::error_code error = storage().rename(from, to)) throw unwritable(to, error);
}

}  // namespace

ExportFolder::ExportFolder(const std::string& path) : path_(without_slash(path)) {
  check_replaceable(path_);
  // Of an export that was killed. While `path` is missing one may be the earlier export, which was being replaced.
  if (is_there(path_)) sweep_asides(path_);
  aside_ = name_aside(path_);
  make_folder(aside_);
  if (!storage().open(aside_, OpenFor::syncing, held_)) (void)held_->lock();  // no sweep takes it
}

ExportFolder::~ExportFolder() {
  if (!aside_.empty()) (void)remove_tree(aside_);
}

void ExportFolder::publish(const ExportRecord& record) {
  write_new_file(aside_ + "/" + kExportRecord, {json::write(record).dump(2) + "\n"});
  sync_folder(aside_);
  check_replaceable(path_);
  std::string before;
  if (is_there(path_)) move_folder(path_, before = name_aside(path_));
  try {
    move_folder(std::exchange(aside_, ""), path_);
  } catch (...) {
    if (!before.empty()) (void)storage().rename(before, path_);
    throw;
  }
  sync_folder(folder_of(path_));
  if (!before.empty()) (void)remove_tree(before);
  sweep_asides(path_);
}

}  // namespace stagecraft
