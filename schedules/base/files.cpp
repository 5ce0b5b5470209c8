#include "schedules/base/files.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <unistd.h>

namespace stagecraft {
namespace {

[[noreturn]] void unwritable(const std::string& path) {
  throw InputError({path, ""}, fmt::format("cannot be written: {}", std::strerror(errno)));
}

class FileDescriptor {
 public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  FileDescriptor(const FileDescriptor&) = delete;
  FileDescriptor& operator=(const FileDescriptor&) = delete;
  [[nodiscard]] int get() const { return fd_; }

 private:
  int fd_;
};

/// False, with errno, when not everything could be written.
bool write_all(const FileDescriptor& file, const std::vector<std::string_view>& pieces) {
  for (const std::string_view piece : pieces) {
    for (std::size_t done = 0; done < piece.size();) {
      const ssize_t n = ::write(file.get(), piece.data() + done, piece.size() - done);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return false;
      done += static_cast<std::size_t>(n);
    }
  }
  return true;
}

[[noreturn]] void give_up(const std::string& path, const std::string& aside) {
  const int error = errno;
  ::unlink(aside.c_str());
  errno = error;
  unwritable(path);
}

/// Where the links lead that begin at `path`; there need be nothing yet.
std::filesystem::path end_of_links(std::filesystem::path path) {
  std::error_code ignored;
  for (int links = 0; std::filesystem::is_symlink(path, ignored); ++links) {
    if (links == 40) {  // as many as the kernel follows
      errno = ELOOP;
      unwritable(path.string());
    }
    path = path.parent_path() / std::filesystem::read_symlink(path, ignored);
  }
  return path;
}

}  // namespace

void write_file_atomically(const std::string& path, std::string_view contents) {
  write_file_atomically(path, std::vector{contents});
}

void write_file_atomically(const std::string& path, const std::vector<std::string_view>& pieces) {
  std::error_code ignored;
  const auto there = std::filesystem::status(path, ignored);
  if (std::filesystem::exists(there) && !std::filesystem::is_regular_file(there)) {
    const FileDescriptor device(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
    if (device.get() < 0 || !write_all(device, pieces)) unwritable(path);
    return;
  }
  const std::filesystem::path target = end_of_links(path);
  const std::string aside = fmt::format("{}.{}.part", target.string(), ::getpid());
  {
    const FileDescriptor file(::open(aside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    if (file.get() < 0) unwritable(path);
    if (!write_all(file, pieces) || ::fsync(file.get()) != 0) give_up(path, aside);
  }
  if (::rename(aside.c_str(), target.c_str()) != 0) give_up(path, aside);
  const std::filesystem::path parent = target.parent_path();
  const FileDescriptor folder(
      ::open(parent.empty() ? "." : parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.get() >= 0) ::fsync(folder.get());
}

void write_json_file(const std::string& path, const Json& json) {
  write_file_atomically(path, json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

Fingerprint& Fingerprint::add(std::string_view bytes) {
  for (const char c : bytes) state_ = (state_ ^ static_cast<unsigned char>(c)) * 1099511628211ULL;
  return *this;
}

std::string Fingerprint::text() const { return fmt::format("{:016x}", state_); }

std::string fingerprint(std::string_view bytes) { return Fingerprint().add(bytes).text(); }

}  // namespace stagecraft
