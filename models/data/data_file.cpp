#include "models/data/data_file.h"

#include <fmt/format.h>
#include <zlib.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>

namespace stagecraft {

namespace {

struct CloseGz {
  void operator()(gzFile_s* file) const { gzclose_r(file); }
};

}  // namespace

InputError data_file_error(const InputPlace& place, const std::string& path, const std::string& what) {
  return InputError(place, fmt::format("{}: {}", path, what));
}

std::string find_data_file(const std::string& path, const std::string& fetch, const InputPlace& place) {
  for (const std::string& candidate : {path, path + ".gz"}) {
    std::error_code ignored;
    if (std::filesystem::is_regular_file(candidate, ignored)) return candidate;
  }
  throw data_file_error(place, path, fmt::format("no such file, nor with .gz; run {}", fetch));
}

std::string read_data_file(const std::string& path, const InputPlace& place) {
  // zlib reads a file without the gzip magic as it stands, so one path serves both.
  errno = 0;
  const std::unique_ptr<gzFile_s, CloseGz> file(gzopen(path.c_str(), "rb"));
  if (file == nullptr) throw data_file_error(place, path, std::strerror(errno != 0 ? errno : ENOMEM));
  const bool must_be_gzip = path.ends_with(".gz");
  std::string bytes;
  std::array<char, 1U << 18U> buffer{};
  while (true) {
    const int got = gzread(file.get(), buffer.data(), static_cast<unsigned>(buffer.size()));
    int code = Z_OK;
    const char* message = gzerror(file.get(), &code);
    if (code == Z_BUF_ERROR) throw data_file_error(place, path, "truncated: the gzip stream has no end");
    if (code == Z_ERRNO) throw data_file_error(place, path, std::strerror(errno));
    if (got < 0) throw data_file_error(place, path, fmt::format("corrupt gzip file ({})", message));
    if (got > 0 && must_be_gzip && gzdirect(file.get()) != 0)
      throw data_file_error(place, path, "not a gzip file");
    if (got == 0) return bytes;
    bytes.append(buffer.data(), static_cast<std::size_t>(got));
  }
}

}  // namespace stagecraft
