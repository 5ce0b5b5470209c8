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

}  // namespace

void write_file_atomically(const std::string& path, std::string_view contents) {
  write_file_atomically(path, std::vector{contents});
}

void write_file_atomically(const std::string& path, const std::vector<std::string_view>& pieces) {
  const std::string aside = fmt::format("{}.{}.part", path, ::getpid());
  const auto give_up = [&] {
    const int error = errno;
    ::unlink(aside.c_str());
    errno = error;
    unwritable(path);
  };
  {
    const FileDescriptor file(::open(aside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    if (file.get() < 0) unwritable(path);
    for (const std::string_view piece : pieces) {
      for (std::size_t done = 0; done < piece.size();) {
        const ssize_t n = ::write(file.get(), piece.data() + done, piece.size() - done);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) give_up();
        done += static_cast<std::size_t>(n);
      }
    }
    if (::fsync(file.get()) != 0) give_up();
  }
  if (::rename(aside.c_str(), path.c_str()) != 0) give_up();
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
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
