#include "models/data/data_file.h"

#include "base/file_kind.h"
#include "base/files.h"
#include "base/input_path.h"
#include "base/machine_memory.h"
#include "base/near_path.h"
#include "models/data/known_format.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <unistd.h>
#include <vector>

namespace stagecraft {

InputError data_file_error(const InputPlace& place, const std::string& path, const std::string& what) {
  return InputError(place, fmt::format("{}: {}", path, what));
}

std::string find_data_file(const std::string& path, const std::string& fetch, const InputPlace& place) {
  for (const std::string& candidate : {path, path + ".gz"}) {
    FileFacts facts;
    const std::error_code error = storage().facts(candidate, /*follow=*/true, facts);
    if (!error && facts.is_file()) return candidate;
    if (!error) {
      throw data_file_error(place, candidate,
                            facts.is_folder()
                                ? fmt::format("is {}; expected a file", kind_of_folder(candidate))
                                : "is a pipe or a device; expected a file");
    }
    if (error != std::errc::no_such_file_or_directory && error != std::errc::not_a_directory) {
      throw data_file_error(place, candidate, "cannot be read: " + error.message());
    }
  }
  throw InputError(place, nothing_at(path, place.file) + (fetch.empty() ? "" : "; run " + fetch));
}

struct DataFile::Impl {
  std::string path;
  InputPlace place;
  StoredFilePtr file;
  std::vector<char> buffer = std::vector<char>(1U << 18U);
  std::size_t filled = 0, used = 0;  // of the buffer
  bool compressed = false;
  bool between_streams = true;  // a gzip file may be several, one after another
  z_stream stream{};

  [[nodiscard]] InputError wrong(const std::string& what) const { return data_file_error(place, path, what); }

  /// False at the end of the file.
  bool refill() {
    used = 0;
    if (const std::error_code error = file->read(buffer.data(), buffer.size(), filled)) {
      filled = 0;
      throw wrong("cannot be read: " + error.message());
    }
    return filled > 0;
  }

  [[nodiscard]] bool begins_gzip() const {
    return filled > used && static_cast<unsigned char>(buffer[used]) == 0x1f &&
           (filled == used + 1 || static_cast<unsigned char>(buffer[used + 1]) == 0x8b);
  }

  std::size_t copy(char* to, std::size_t bytes) {
    const std::size_t now = std::min(bytes, filled - used);
    std::copy_n(buffer.data() + used, now, to);
    used += now;
    return now;
  }

  std::size_t uncompress(char* to, std::size_t bytes) {
    if (between_streams && !begins_gzip()) {  // padding behind the last stream
      used = filled;
      return 0;
    }
    if (between_streams) inflateReset(&stream);
    between_streams = false;
    stream.next_in = reinterpret_cast<Bytef*>(buffer.data() + used);
    stream.avail_in = static_cast<uInt>(filled - used);
    stream.next_out = reinterpret_cast<Bytef*>(to);
    const auto room = static_cast<uInt>(std::min<std::size_t>(bytes, 1U << 30U));
    stream.avail_out = room;
    const int code = inflate(&stream, Z_NO_FLUSH);
    used = filled - stream.avail_in;
    if (code == Z_STREAM_END) {
      between_streams = true;
    } else if (code != Z_OK && code != Z_BUF_ERROR) {
      throw wrong(fmt::format("corrupt gzip file ({})", stream.msg != nullptr ? stream.msg : zError(code)));
    }
    return room - stream.avail_out;
  }
};

DataFile::DataFile(const std::string& path, const InputPlace& place) : impl_(std::make_unique<Impl>()) {
  impl_->path = path;
  impl_->place = place;
  if (const std::error_code error = storage().open(path, OpenFor::reading, impl_->file)) {
    throw impl_->wrong(not_opened(path, error));
  }
  (void)impl_->refill();
  impl_->compressed = impl_->begins_gzip();
  if (path.ends_with(".gz") && !impl_->compressed) throw impl_->wrong("not a gzip file");
  constexpr int kGzip = 16 + MAX_WBITS;
  if (impl_->compressed && inflateInit2(&impl_->stream, kGzip) != Z_OK) throw std::bad_alloc();
}

DataFile::~DataFile() {
  if (impl_->compressed) inflateEnd(&impl_->stream);
}

void DataFile::read_onto(std::string& text, std::uint64_t bytes) {
  Impl& file = *impl_;
  constexpr std::uint64_t kPiece = std::uint64_t{1} << 20U;
  const std::uint64_t most = text.size() + bytes;
  while (text.size() < most) {
    if (file.used == file.filled && !file.refill()) {
      if (file.compressed && !file.between_streams) throw file.wrong("truncated: the gzip stream has no end");
      break;
    }
    const std::size_t before = text.size();
    const std::uint64_t next = std::min(most, before + kPiece);
    // By itself a string would ask for up to twice of what it comes to.
    if (next > text.capacity()) text.reserve(std::min(most, std::max<std::uint64_t>(next, 2 * before)));
    text.resize(next);
    const std::size_t room = text.size() - before;
    text.resize(before + (file.compressed ? file.uncompress(text.data() + before, room)
                                          : file.copy(text.data() + before, room)));
  }
}

std::string read_data_file(const std::string& path, const InputPlace& place, const DataLimit& most) {
  FileFacts facts;
  const std::error_code error = storage().facts(path, /*follow=*/true, facts);
  const auto too_large = [&](const std::string& how_large) {
    return data_file_error(
        place, path, fmt::format("has {} bytes; at most {} are read, {}", how_large, most.bytes, most.words));
  };
  if (!error && facts.is_file() && facts.bytes > most.bytes) throw too_large(std::to_string(facts.bytes));
  std::string bytes;
  DataFile(path, place).read_onto(bytes, most.bytes + 1);
  if (bytes.size() > most.bytes) throw too_large("more");
  return bytes;
}

DataLimit share_of_memory(int parts) {
  const std::string share = parts == 2 ? "half" : fmt::format("one part in {}", parts);
  if (const auto limit = tightest(memory_limits())) {
    return {static_cast<std::uint64_t>(limit->available.value / parts),
            fmt::format("{} of what is free: {}", share, describe_limit(*limit))};
  }
  const std::uint64_t machine =
      static_cast<std::uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  return {machine / static_cast<std::uint64_t>(parts), share + " of this machine's memory"};
}

std::string beginning_of(const std::string& path) {
  StoredFilePtr file;
  std::string bytes(kFormatBytes, '\0');
  std::size_t filled = 0;
  if (storage().open(path, OpenFor::reading, file) || file->read(bytes.data(), bytes.size(), filled))
    return "";
  bytes.resize(filled);
  return bytes;
}

}  // namespace stagecraft
