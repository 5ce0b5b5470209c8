#pragma once

// Files that are never half-written, and fingerprints of what is in them.

#include "schedules/base/json.h"

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace stagecraft {

/// Replaces `path` with `contents`: written aside in the same folder, fsynced, renamed, folder fsynced. Where
/// `path` is a link, so is the file it leads to; what is no file (/dev/stdout, a pipe) is written to as it
/// is. Throws InputError (unwritable path, full disk) and leaves the old file as it was.
void write_file_atomically(const std::string& path, std::string_view contents);
/// The same for contents that lie in pieces, without joining them in memory.
void write_file_atomically(const std::string& path, const std::vector<std::string_view>& pieces);

/// Pretty-printed (two spaces), with a newline at the end, through write_file_atomically.
void write_json_file(const std::string& path, const Json& json);

/// FNV-1a, 64 bits, as 16 hex digits: tells apart, detects corruption, is no defence against an adversary.
class Fingerprint {
 public:
  Fingerprint& add(std::string_view bytes);
  [[nodiscard]] std::string text() const;

 private:
  std::uint64_t state_ = 14695981039346656037ULL;
};
[[nodiscard]] std::string fingerprint(std::string_view bytes);

}  // namespace stagecraft
