#include "base/files.h"

#include "base/file_kind.h"
#include "base/near_path.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <random>
#include <unistd.h>

namespace stagecraft {
namespace {

constexpr std::string_view kAside = ".part";

bool missing(const std::error_code& error) {
  return error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory;
}

/// What is at `path`, links followed; nothing where nothing is.
std::optional<FileFacts> facts_of(const std::string& path) {
  FileFacts facts;
  const std::error_code error = storage().facts(path, /*follow=*/true, facts);
  if (error && !missing(error)) throw unreadable(path, error);
  return error ? std::nullopt : std::optional(facts);
}

/// Permissions of `made`, which replaces `old`. A group that had no part in the old file gets what all others get.
unsigned kept_mode(const FileFacts& old, const FileFacts& made) {
  constexpr unsigned kPermissions = 0777, kGroup = 0070, kOthers = 0007;
  const unsigned mode = old.mode & kPermissions;
  return old.group == made.group ? mode : mode & (~kGroup | (mode & kOthers) << 3U);
}

/// Writes all that goes into a file. May throw instead.
using Fill = std::function<std::error_code(StoredFile&)>;

Fill filled_with(const std::vector<std::string_view>& pieces) {
  return [&pieces](StoredFile& file) {
    std::error_code error;
    for (std::size_t i = 0; !error && i < pieces.size(); ++i) error = write_all(file, pieces[i]);
    return error;
  };
}

/// Fills a file that was just made, and syncs it. `like`: what it replaces.
std::error_code fill_file(StoredFile& file, const Fill& fill, const FileFacts* like) {
  constexpr unsigned kAlone = 0600;
  FileFacts made;
  std::error_code error;
  if (like != nullptr) error = file.facts(made);
  const bool keeps = like != nullptr && !error && like->owner == made.owner;
  if (keeps) error = file.set_mode(kAlone);  // nobody reads it, or opens it for writing, before it is whole
  if (!error) error = fill(file);
  if (!error && keeps) error = file.set_mode(kept_mode(*like, made));
  return error ? error : file.sync();
}

/// A file under a name aside, held by its lock so that no sweep takes it for one of a process that is gone.
std::error_code make_aside(const std::string& target, std::string& aside, StoredFilePtr& file) {
  for (;;) {
    aside = name_aside(target);
    if (const std::error_code error = storage().open(aside, OpenFor::making, file)) return error;
    FileFacts facts;
    const bool lost = file->lock() == std::errc::resource_unavailable_try_again ||
                      (!file->facts(facts) && facts.names == 0);  // a sweep came between the two calls
    if (!lost) return {};
  }
}

constexpr unsigned kRoot = 0;

/// Where the links lead that begin at `path`; there need be nothing yet.
std::string end_of_links(std::string path) {
  constexpr int kMostLinks = 40;  // as many as the kernel follows
  FileFacts facts;
  for (int links = 0; !storage().facts(path, /*follow=*/false, facts); ++links) {
    if (facts.kind != FileFacts::Kind::link) break;
    if (links == kMostLinks)
      throw unwritable(path, std::make_error_code(std::errc::too_many_symbolic_link_levels));
    if (facts.owner != ::geteuid() && facts.owner != kRoot) {
      throw InputError({path, ""}, "is a link of another user, which is not written through: name the file");
    }
    std::string target;
    if (const std::error_code error = storage().read_link(path, target)) throw unwritable(path, error);
    path = (std::filesystem::path(path).parent_path() / target).string();
  }
  return path;
}

void write_to_device(const std::string& path, const std::vector<std::string_view>& pieces) {
  StoredFilePtr device;
  std::error_code error = storage().open(path, OpenFor::streaming, device);
  if (error == std::errc::no_such_device_or_address) {
    throw InputError({path, ""}, "cannot be written: nobody has this pipe open for reading");
  }
  for (std::size_t i = 0; !error && i < pieces.size(); ++i) error = write_all(*device, pieces[i]);
  if (error) throw unwritable(path, error);
}

/// `there`: the file that is at `target`, if there is one.
void replace_file(const std::string& target, const FileFacts* there, const Fill& fill,
                  const std::function<void(const std::string& aside)>& look) {
  std::string aside;
  StoredFilePtr file;
  std::error_code error = make_aside(target, aside, file);
  try {
    if (!error) error = fill_file(*file, fill, there);
    if (!error && look) look(aside);
    if (!error) error = storage().rename(aside, target);
    if (error) throw unwritable(target, error);
  } catch (...) {
    if (file != nullptr) (void)storage().remove(aside);
    throw;
  }
  sync_folder(folder_of(target));
}

/// Not geteuid() alone: file servers have users of their own (root of a client is nobody's).
void require_owner(const std::string& path, const FileFacts& facts) {
  if (facts.owner == ::geteuid()) return;
  const std::string mine = name_aside(folder_of(path) + "/probe");
  StoredFilePtr file;
  FileFacts made;
  if (!storage().open(mine, OpenFor::making, file)) {
    const bool same = !file->facts(made) && made.owner == facts.owner;
    (void)storage().remove(mine);
    if (same) return;
  }
  throw InputError({path, ""},
                   fmt::format("belongs to user {}, and this process is of user {}: go on as that "
                               "user, or take the whole folder over with chown -R",
                               facts.owner, ::geteuid()));
}

}  // namespace

std::string read_file(const std::string& path, std::uint64_t most) {
  StoredFilePtr file;
  if (const std::error_code error = storage().open(path, OpenFor::reading, file)) {
    throw InputError({path, ""}, not_opened(path, error));
  }
  const auto too_large = [&](const std::string& how_large) {
    throw InputError({path, ""}, fmt::format("has {} bytes; at most {} are read", how_large, most));
  };
  FileFacts facts;
  if (const std::error_code error = file->facts(facts)) throw unreadable(path, error);
  if (facts.is_folder()) throw InputError({path, ""}, fmt::format("is {}, not a file", kind_of_folder(path)));
  if (facts.is_file() && facts.bytes > most) too_large(std::to_string(facts.bytes));
  constexpr std::size_t kPiece = std::size_t{1} << 18U;
  std::string text;
  if (facts.is_file()) text.reserve(facts.bytes + 1);
  while (true) {
    const std::size_t before = text.size();
    const std::size_t room = text.capacity() - before;
    text.resize(before + std::clamp<std::size_t>(room, 1, std::max(kPiece, before)));
    std::size_t got = 0;
    const std::error_code error = file->read(text.data() + before, text.size() - before, got);
    text.resize(before + got);
    if (error) throw unreadable(path, error);
    if (got == 0) return text;
    if (text.size() > most) too_large(fmt::format("more than {}", most));
    if (text.size() == text.capacity()) text.reserve(text.size() + std::max(kPiece, text.size() / 2));
  }
}

void write_file_atomically(const std::string& path, std::string_view contents, Links links) {
  write_file_atomically(path, std::vector{contents}, links);
}

void write_file_atomically(const std::string& path, const std::vector<std::string_view>& pieces, Links links,
                           const std::function<void(const std::string& aside)>& look) {
  const std::string target = links == Links::follow ? end_of_links(path) : path;
  FileFacts there;
  const bool exists = !storage().facts(target, /*follow=*/false, there);
  if (exists && !there.is_file() && links == Links::follow) return write_to_device(target, pieces);
  // The kernel follows /dev/stdout to a pipe; the name that /proc gives that one leads nowhere.
  FileFacts followed;
  if (!exists && links == Links::follow && !storage().facts(path, /*follow=*/true, followed) &&
      !followed.is_file())
    return write_to_device(path, pieces);
  if (links == Links::follow) sweep_asides(target);  // first: it may be what fills the disk
  replace_file(target, exists && there.is_file() ? &there : nullptr, filled_with(pieces), look);
}

void replace_with_start(const std::string& path, const StoredFile& from, std::uint64_t bytes) {
  FileFacts there;
  const bool exists = !storage().facts(path, /*follow=*/false, there) && there.is_file();
  const auto copy = [&](StoredFile& file) {
    constexpr std::uint64_t kPiece = std::uint64_t{1} << 20U;
    std::string piece(std::min(kPiece, bytes), '\0');
    for (std::uint64_t done = 0; done < bytes; done += piece.size()) {
      piece.resize(std::min(kPiece, bytes - done));
      const std::string wrong = read_exactly(from, done, piece.data(), piece.size());
      if (!wrong.empty()) throw InputError({path, ""}, wrong);
      if (const std::error_code error = write_all(file, piece)) return error;
    }
    return std::error_code();
  };
  replace_file(path, exists ? &there : nullptr, copy, nullptr);
}

void write_new_file(const std::string& path, const std::vector<std::string_view>& pieces) {
  StoredFilePtr file;
  std::error_code error = storage().open(path, OpenFor::making, file);
  if (error) throw unwritable(path, error);
  error = fill_file(*file, filled_with(pieces), nullptr);
  if (!error) return;
  (void)storage().remove(path);
  throw unwritable(path, error);
}

StoredFilePtr open_to_append(const std::string& path) {
  StoredFilePtr file;
  const std::error_code error = storage().open(path, OpenFor::appending, file);
  if (error == std::errc::too_many_symbolic_link_levels) {
    throw InputError({path, ""}, "is a link, which a run does not write through; remove it");
  }
  if (error) throw unwritable(path, error);
  require_own_file(path, *file);
  return file;
}

void require_own_file(const std::string& path, StoredFile& file) {
  FileFacts facts;
  if (const std::error_code error = file.facts(facts)) throw unreadable(path, error);
  if (!facts.is_file()) throw InputError({path, ""}, "is no file; remove it");
  if (facts.names > 1) {
    throw InputError({path, ""}, fmt::format("has {} names (hard links), and all would change with it; put a "
                                             "copy in its place",
                                             facts.names));
  }
  require_owner(path, facts);
}

void require_own_folder(const std::string& path) {
  FileFacts facts;
  if (const std::error_code error = storage().facts(path, /*follow=*/false, facts)) {
    throw unreadable(path, error);
  }
  if (facts.kind == FileFacts::Kind::link) {
    throw InputError({path, ""}, "is a link, which a run does not follow; put a folder in its place");
  }
  if (!facts.is_folder()) throw InputError({path, ""}, "is no folder; remove it");
  require_owner(path, facts);
}

std::string read_exactly(const StoredFile& file, std::uint64_t offset, void* to, std::size_t bytes) {
  for (std::size_t done = 0; done < bytes;) {
    std::size_t got = 0;
    const std::error_code error =
        file.read_at(offset + done, static_cast<char*>(to) + done, bytes - done, got);
    if (error) return "cannot be read: " + error.message();
    if (got == 0) return fmt::format("ends at byte {}: it was cut off", offset + done);
    done += got;
  }
  return "";
}

InputError unreadable(const std::string& path, const std::error_code& error) {
  return {{path, ""}, "cannot be read: " + error.message()};
}

InputError unwritable(const std::string& path, const std::error_code& error) {
  return {{path, ""}, "cannot be written: " + error.message()};
}

std::error_code write_all(StoredFile& file, std::string_view bytes) {
  while (!bytes.empty()) {
    std::size_t wrote = 0;
    if (const std::error_code error = file.write(bytes, wrote)) return error;
    if (wrote == 0) return std::make_error_code(std::errc::io_error);  // or this would go on for ever
    bytes.remove_prefix(wrote);
  }
  return {};
}

std::string unique_name(const std::string& stem) {
  std::random_device random;
  return fmt::format("{}.{:08x}{:08x}", stem, random(), random());
}

std::string name_aside(const std::string& path) {
  std::string name = unique_name(path);
  name += kAside;
  return name;
}

std::string_view named_aside(std::string_view name) {
  constexpr std::size_t kDigits = 16;
  if (!name.ends_with(kAside)) return {};
  name.remove_suffix(kAside.size());
  if (name.size() < kDigits + 2 || name[name.size() - kDigits - 1] != '.') return {};
  const std::string_view digits = name.substr(name.size() - kDigits);
  if (digits.find_first_not_of("0123456789abcdef") != std::string_view::npos) return {};
  return name.substr(0, name.size() - kDigits - 1);
}

void sweep_asides(const std::string& path, bool alone) noexcept {
  try {
    const std::string folder = folder_of(path);
    const std::string_view target = std::string_view(path).substr(path.find_last_of('/') + 1);
    std::vector<std::string> names;
    if (storage().list(folder, names)) return;
    for (const std::string& name : names) {
      if (named_aside(name) != target) continue;
      const std::string aside = fmt::format("{}/{}", folder, name);
      FileFacts facts;
      if (storage().facts(aside, /*follow=*/false, facts) || facts.owner != ::geteuid()) continue;
      if (!facts.is_file() && !facts.is_folder()) continue;
      StoredFilePtr held;
      if (alone) {
        (void)remove_tree(aside);
        continue;
      }
      if (storage().open(aside, facts.is_folder() ? OpenFor::syncing : OpenFor::reading, held)) continue;
      if (!held->lock()) (void)remove_tree(aside);
    }
  } catch (...) {  // no memory: another time
  }
}

bool is_there(const std::string& path) { return facts_of(path).has_value(); }

bool is_folder(const std::string& path) {
  const std::optional<FileFacts> facts = facts_of(path);
  return facts && facts->is_folder();
}

void make_folder(const std::string& path) {
  const auto refuse = [&](const std::string& why) {
    throw InputError({path, ""}, "the folder cannot be made: " + why);
  };
  FileFacts facts;
  if (!storage().facts(path, /*follow=*/true, facts)) {
    if (!facts.is_folder()) refuse("a file is in its place");
    return;
  }
  const std::string parent = folder_of(path);
  if (parent != path) make_folder(parent);
  const std::error_code error = storage().make_folder(path);
  if (error == std::errc::file_exists) return;  // somebody else was quicker, or the path ends in a slash
  if (error) refuse(error.message());
  sync_folder(parent);
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  if (const std::error_code error = storage().list(folder, names)) throw unreadable(folder, error);
  std::sort(names.begin(), names.end());
  return names;
}

void sync_folder(const std::string& path) {
  StoredFilePtr folder;
  std::error_code error = storage().open(path, OpenFor::syncing, folder);
  if (error == std::errc::permission_denied) return;  // may be written to and not read
  if (!error) error = folder->sync();
  if (error == std::errc::invalid_argument || error == std::errc::not_supported) return;
  if (error) throw unwritable(path, error);
}

std::error_code remove_tree(const std::string& path) {
  std::error_code first = storage().remove(path);
  if (!first || missing(first)) return {};
  if (first != std::errc::directory_not_empty && first != std::errc::file_exists) return first;
  std::vector<std::string> names;
  first = storage().list(path, names);
  for (const std::string& name : names) {
    const std::error_code error = remove_tree(fmt::format("{}/{}", path, name));
    if (!first) first = error;
  }
  if (!first) first = storage().remove(path);
  return missing(first) ? std::error_code{} : first;
}

std::string folder_of(const std::string& path) {
  const std::size_t end = path.find_last_not_of('/');
  const std::size_t slash = end == std::string::npos ? end : path.find_last_of('/', end);
  if (slash == std::string::npos) return end == std::string::npos && !path.empty() ? "/" : ".";
  const std::size_t last = path.find_last_not_of('/', slash);
  return last == std::string::npos ? "/" : path.substr(0, last + 1);
}

}  // namespace stagecraft
