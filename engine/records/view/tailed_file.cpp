#include "engine/records/view/tailed_file.h"

#include "base/files.h"
#include "base/storage.h"

#include <algorithm>
#include <chrono>
#include <filesystem>

namespace stagecraft {
namespace {

constexpr std::size_t kRemembered = 512;

/// Seconds since 1970; 0: not known.
double modified_at(const std::string& path) {
  std::error_code error;
  const auto time = std::filesystem::last_write_time(path, error);
  if (error) return 0;
  return std::chrono::duration<double>(std::chrono::file_clock::to_sys(time).time_since_epoch()).count();
}

}  // namespace

TailedFile::Found TailedFile::begin_anew() {
  const bool had_read = position_ > 0;
  position_ = bytes_ = 0;
  modified_ = 0;
  before_.clear();
  return had_read ? Found::other : Found::all;
}

bool TailedFile::is_the_same(const StoredFile& file) const {
  std::string there(before_.size(), '\0');
  return read_exactly(file, position_ - before_.size(), there.data(), there.size()).empty() &&
         there == before_;
}

TailedFile::Found TailedFile::read(std::size_t most_bytes,
                                   const std::function<void(std::string_view)>& line) {
  StoredFilePtr file;
  FileFacts facts;
  // A pipe would be waited for.
  if (storage().facts(path_, /*follow=*/true, facts) || !facts.is_file() ||
      storage().open(path_, OpenFor::reading, file) || file->facts(facts)) {
    return begin_anew();
  }
  if (facts.bytes < position_ || !is_the_same(*file)) return begin_anew();
  bytes_ = facts.bytes;
  modified_ = modified_at(path_);
  std::size_t taken = 0;
  std::string text;
  while (position_ < bytes_) {
    if (taken >= most_bytes) return Found::part;
    text.resize(std::min<std::uint64_t>(bytes_ - position_, std::max(most_bytes, 2 * kLongest)));
    if (!read_exactly(*file, position_, text.data(), text.size()).empty()) return Found::all;
    std::size_t end = text.rfind('\n');
    if (end == std::string::npos) {
      if (text.size() < 2 * kLongest) return Found::all;  // the line that is being written
      end = text.size() - 1;                              // no line of ours
    }
    const std::string_view whole = std::string_view(text).substr(0, end + 1);
    for (std::size_t at = 0; at < whole.size();) {
      const std::size_t stop = std::min(whole.find('\n', at), whole.size());
      if (stop - at <= kLongest) line(whole.substr(at, stop - at));
      at = stop + 1;
    }
    position_ += whole.size();
    taken += whole.size();
    before_ = whole.substr(whole.size() - std::min(whole.size(), kRemembered));
  }
  return Found::all;
}

}  // namespace stagecraft
