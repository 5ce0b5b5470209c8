#include "base/storage.h"

#include <atomic>
#include <cerrno>
#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

namespace stagecraft {
namespace {

std::error_code last_error() { return {errno, std::system_category()}; }

/// Of a call that answers -1 where it fails.
template <class Call>
std::error_code checked(const Call& call) {
  while (call() < 0) {
    if (errno != EINTR) return last_error();
  }
  return {};
}

FileFacts facts_of(const struct stat& stat) {
  FileFacts facts;
  facts.kind = S_ISREG(stat.st_mode)   ? FileFacts::Kind::file
               : S_ISDIR(stat.st_mode) ? FileFacts::Kind::folder
               : S_ISLNK(stat.st_mode) ? FileFacts::Kind::link
                                       : FileFacts::Kind::other;
  facts.bytes = static_cast<std::uint64_t>(stat.st_size);
  facts.mode = stat.st_mode & 07777U;
  facts.owner = stat.st_uid;
  facts.group = stat.st_gid;
  facts.identity = static_cast<std::uint64_t>(stat.st_dev) * 0x9E3779B97F4A7C15ULL ^ stat.st_ino;
  facts.names = stat.st_nlink;
  return facts;
}

class PosixFile final : public StoredFile {
 public:
  explicit PosixFile(int file) : file_(file) {}
  ~PosixFile() override { ::close(file_); }
  PosixFile(const PosixFile&) = delete;
  PosixFile& operator=(const PosixFile&) = delete;

  std::error_code read(char* to, std::size_t bytes, std::size_t& got) override {
    return transfer([&] { return ::read(file_, to, bytes); }, got);
  }
  std::error_code read_at(std::uint64_t offset, char* to, std::size_t bytes,
                          std::size_t& got) const override {
    return transfer([&] { return ::pread(file_, to, bytes, static_cast<off_t>(offset)); }, got);
  }
  std::error_code write(std::string_view bytes, std::size_t& wrote) override {
    return transfer([&] { return ::write(file_, bytes.data(), bytes.size()); }, wrote);
  }
  std::error_code sync() override {
    return checked([&] { return ::fsync(file_); });
  }
  std::error_code cut(std::uint64_t bytes) override {
    return checked([&] { return ::ftruncate(file_, static_cast<off_t>(bytes)); });
  }
  std::error_code set_mode(unsigned mode) override {
    return checked([&] { return ::fchmod(file_, mode); });
  }
  std::error_code facts(FileFacts& facts) override {
    struct stat stat {};
    if (::fstat(file_, &stat) != 0) return last_error();
    facts = facts_of(stat);
    return {};
  }
  std::error_code lock() override {
    return checked([&] { return ::flock(file_, LOCK_EX | LOCK_NB); });
  }

 private:
  template <class Call>
  static std::error_code transfer(const Call& call, std::size_t& done) {
    ssize_t result = 0;
    const std::error_code error = checked([&] { return result = call(); });
    done = error ? 0 : static_cast<std::size_t>(result);
    return error;
  }

  int file_;
};

int flags_of(OpenFor use) {
  switch (use) {
    case OpenFor::reading:
      return O_RDONLY | O_NONBLOCK;  // or a pipe that nobody writes to would block here for ever
    case OpenFor::syncing:
      return O_RDONLY | O_DIRECTORY;
    case OpenFor::making:
      return O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW;
    case OpenFor::appending:
      return O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_NONBLOCK;
    case OpenFor::locking:
      return O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK;
    case OpenFor::streaming:
      return O_WRONLY | O_NONBLOCK;
  }
  return O_RDONLY;
}

class PosixStorage final : public Storage {
 public:
  std::error_code open(const std::string& path, OpenFor use, StoredFilePtr& file) override {
    const mode_t mode = use == OpenFor::locking ? 0600 : 0666;  // less the umask
    int opened = -1;
    const std::error_code error =
        checked([&] { return opened = ::open(path.c_str(), flags_of(use) | O_CLOEXEC, mode); });
    if (error) return error;
    file = std::make_unique<PosixFile>(opened);
    const int flags = ::fcntl(opened, F_GETFL);
    return checked([&] { return ::fcntl(opened, F_SETFL, flags & ~O_NONBLOCK); });
  }
  std::error_code rename(const std::string& from, const std::string& to) override {
    return checked([&] { return ::rename(from.c_str(), to.c_str()); });
  }
  std::error_code link(const std::string& from, const std::string& to) override {
    return checked([&] { return ::link(from.c_str(), to.c_str()); });
  }
  std::error_code remove(const std::string& path) override {
    if (::unlink(path.c_str()) == 0) return {};
    if (errno != EISDIR && errno != EPERM) return last_error();
    const std::error_code as_file = last_error();
    if (::rmdir(path.c_str()) == 0) return {};
    return errno == ENOTDIR ? as_file : last_error();
  }
  std::error_code make_folder(const std::string& path) override {
    constexpr mode_t kMode = 0777;  // less the umask
    return checked([&] { return ::mkdir(path.c_str(), kMode); });
  }
  std::error_code list(const std::string& path, std::vector<std::string>& names) override {
    names.clear();
    const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir(path.c_str()), &::closedir);
    if (folder == nullptr) return last_error();
    while (true) {
      errno = 0;
      const dirent* const entry = ::readdir(folder.get());
      if (entry == nullptr) return errno != 0 ? last_error() : std::error_code{};
      const std::string_view name = entry->d_name;
      if (name != "." && name != "..") names.emplace_back(name);
    }
  }
  std::error_code facts(const std::string& path, bool follow, FileFacts& facts) override {
    struct stat stat {};
    const int result = follow ? ::stat(path.c_str(), &stat) : ::lstat(path.c_str(), &stat);
    if (result != 0) return last_error();
    facts = facts_of(stat);
    return {};
  }
  std::error_code read_link(const std::string& path, std::string& target) override {
    target.resize(4096);
    const ssize_t length = ::readlink(path.c_str(), target.data(), target.size());
    if (length < 0) return last_error();
    target.resize(static_cast<std::size_t>(length));
    return {};
  }
  std::error_code space(const std::string& path, std::uint64_t& bytes) override {
    struct statvfs facts {};
    if (::statvfs(path.c_str(), &facts) != 0) return last_error();
    bytes = static_cast<std::uint64_t>(facts.f_bavail) * facts.f_frsize;
    return {};
  }
};

PosixStorage& machine() {
  static PosixStorage posix;
  return posix;
}

std::atomic<Storage*> instead{nullptr};

}  // namespace

Storage& unfenced_storage() {
  Storage* const other = instead.load(std::memory_order_acquire);
  return other != nullptr ? *other : machine();
}

StorageInstead::StorageInstead(Storage& other) : before_(instead.exchange(&other)) {}
StorageInstead::~StorageInstead() { instead = before_; }

}  // namespace stagecraft
