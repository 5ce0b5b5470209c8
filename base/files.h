#pragma once

// Files that are never half-written, folders, and fingerprints of contents. All of it goes through storage()
// (base/storage.h). Errors are InputErrors that name the path and the system's reason.

#include "base/error.h"
#include "base/storage.h"

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace stagecraft {

/// What read_file takes unless told otherwise: no plan, profile or schedule comes near it.
inline constexpr std::uint64_t kMostTextBytes = std::uint64_t{1} << 30U;

/// Whole contents of a file, or of a pipe that somebody writes. Throws InputError: missing, unreadable, a
/// folder, more than `most` bytes (which are then not read).
[[nodiscard]] std::string read_file(const std::string& path, std::uint64_t most = kMostTextBytes);

/// Links at the end of a path: written through, or replaced like a file (where others may have put them).
enum class Links : std::uint8_t { follow, replace };

/// Replaces `path` with `contents`: written aside in the same folder ("<name>.<random>.part"), synced,
/// renamed, folder synced. The permissions of an existing file stay where it is this user's, its special bits
/// (setuid, setgid, sticky) never do; another user's file leaves nothing. Further hard links to it keep the old
/// contents. What is no file (/dev/stdout, a pipe) is written to as it is. Links::follow is for paths that
/// people name: links of other users are refused, and what a killed process left aside of this `path` goes.
/// Throws InputError (unwritable path, full disk) and leaves the old file as it was, with nothing aside.
void write_file_atomically(const std::string& path, std::string_view contents, Links links = Links::follow);
/// The same for contents that lie in pieces, without joining them in memory. `look`: is given the path of the
/// file aside before it is renamed; what it throws leaves the old file as it was, too.
void write_file_atomically(const std::string& path, const std::vector<std::string_view>& pieces,
                           Links links = Links::follow,
                           const std::function<void(const std::string& aside)>& look = nullptr);

/// Replaces `path` with the first so many bytes of what is open, likewise, with Links::replace: a piece of them in memory at
/// a time. It may be the same file.
void replace_with_start(const std::string& path, const StoredFile& from, std::uint64_t bytes);

/// Makes a file where there must be none, and syncs it; its folder is the caller's to sync. Throws InputError
/// and leaves none.
void write_new_file(const std::string& path, const std::vector<std::string_view>& pieces);

/// The end of a file that grows, made where it is missing. Throws InputError: unwritable, or in its place
/// something that others may have put there: a link, a file with further names or of another user, no file.
[[nodiscard]] StoredFilePtr open_to_append(const std::string& path);

/// Throws InputError where what is open at `path` may be somebody else's: no file, one with further names (hard
/// links), or one of another user.
void require_own_file(const std::string& path, StoredFile& file);
/// The same for a folder of a run: a link, or another user's.
void require_own_folder(const std::string& path);

/// What `file` has from `offset` on. Returns what is wrong, behind a file's name, or "".
[[nodiscard]] std::string read_exactly(const StoredFile& file, std::uint64_t offset, void* to,
                                       std::size_t bytes);

/// All of `bytes`, or an error.
[[nodiscard]] std::error_code write_all(StoredFile& file, std::string_view bytes);

/// "runs/a: cannot be read: Input/output error".
[[nodiscard]] InputError unreadable(const std::string& path, const std::error_code& error);
[[nodiscard]] InputError unwritable(const std::string& path, const std::error_code& error);

/// Ends in '.' and 16 random hex digits: no two processes, on whatever machines, choose the same.
[[nodiscard]] std::string unique_name(const std::string& stem);
/// Of something that is being written and gets its own name when it is whole: "<name>.<random>.part".
[[nodiscard]] std::string name_aside(const std::string& path);
/// The name that name_aside was given; "" for a name that it does not make.
[[nodiscard]] std::string_view named_aside(std::string_view name);

/// Removes what processes that are gone were writing of `path`: its names aside, where they are this user's and
/// nobody holds their lock. `alone`: without asking for the lock, since no other process writes there. What cannot
/// be removed stays.
void sweep_asides(const std::string& path, bool alone = false) noexcept;

/// Whether anything is there, links followed. Throws InputError where that cannot be told: a folder that may
/// not be searched, a disk that fails.
[[nodiscard]] bool is_there(const std::string& path);
[[nodiscard]] bool is_folder(const std::string& path);

/// Makes a folder and its parents, and syncs where it made one. Throws InputError.
void make_folder(const std::string& path);

/// Names in a folder, sorted. Throws InputError.
[[nodiscard]] std::vector<std::string> names_in(const std::string& folder);

/// The folder's entries will be there after a power cut. File systems that cannot sync folders are let be.
/// Throws InputError.
void sync_folder(const std::string& path);

/// A file, or a folder with all that is in it; links are removed, not followed. Goes on behind what cannot be
/// removed; the first error, or none. Something missing is none.
[[nodiscard]] std::error_code remove_tree(const std::string& path);

/// The folder that `path` is in, "." for a plain name.
[[nodiscard]] std::string folder_of(const std::string& path);

}  // namespace stagecraft
