#pragma once

// The file system as everything that a run reads or writes sees it: a few calls, each of which can fail.
// There are two implementations, the machine's (POSIX) and one in the tests' memory that fails on demand and
// loses power (test/support/simulated_disk.h). What is built on it, files that are never half-written, is in
// files.h.
//
// Errors are std::error_code with the numbers of errno: whoever calls knows the file's role and says it. Calls that
// change a folder which another process has taken throw TakenOverError (fence.h).
// Links in the last part of a path are never followed where a file is made, appended to or locked: a run
// directory may have been prepared by somebody else.
//
// Files are read, never mapped: where a mapped file is cut off or its disk fails, the process dies of SIGBUS.
//
// Threads: all calls may come from any thread; one StoredFile belongs to one thread at a time.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace stagecraft {

struct FileFacts {
  enum class Kind : std::uint8_t { file, folder, link, other };  ///< other: pipes, devices
  Kind kind = Kind::file;
  std::uint64_t bytes = 0;
  unsigned mode = 0;   ///< permissions
  unsigned owner = 0;  ///< number of the user
  unsigned group = 0;
  std::uint64_t identity = 0;  ///< of the file itself, whatever its names: device and inode
  std::uint64_t names = 1;     ///< hard links

  [[nodiscard]] bool is_file() const { return kind == Kind::file; }
  [[nodiscard]] bool is_folder() const { return kind == Kind::folder; }
};

/// An open file or folder; closed when destroyed.
class StoredFile {
 public:
  virtual ~StoredFile() = default;
  /// Up to `bytes` from where the last read ended; `got` 0 is the end.
  [[nodiscard]] virtual std::error_code read(char* to, std::size_t bytes, std::size_t& got) = 0;
  /// Up to `bytes` from there on, wherever others read; `got` 0 is the end. Thread-safe.
  [[nodiscard]] virtual std::error_code read_at(std::uint64_t offset, char* to, std::size_t bytes,
                                                std::size_t& got) const = 0;
  /// `wrote` may be less than asked for, also with an error.
  [[nodiscard]] virtual std::error_code write(std::string_view bytes, std::size_t& wrote) = 0;
  /// Everything written (a folder: its entries) will be there after a power cut.
  [[nodiscard]] virtual std::error_code sync() = 0;
  [[nodiscard]] virtual std::error_code cut(std::uint64_t bytes) = 0;
  [[nodiscard]] virtual std::error_code set_mode(unsigned mode) = 0;
  [[nodiscard]] virtual std::error_code facts(FileFacts& facts) = 0;
  /// Exclusive, until this is destroyed. resource_unavailable_try_again: somebody else has it.
  [[nodiscard]] virtual std::error_code lock() = 0;
};
using StoredFilePtr = std::unique_ptr<StoredFile>;

enum class OpenFor : std::uint8_t {
  reading,    ///< a file, or a pipe, which blocks while somebody has it open for writing
  syncing,    ///< a folder
  making,     ///< there must be nothing of this name
  appending,  ///< made where it is missing
  locking,    ///< the same, for this user alone: who can open a file can hold its lock; read and written from
              ///< its beginning
  streaming,  ///< something that is no file: a device, a pipe that somebody reads
};

class Storage {
 public:
  virtual ~Storage() = default;
  [[nodiscard]] virtual std::error_code open(const std::string& path, OpenFor use, StoredFilePtr& file) = 0;
  /// `to` may exist: a file is replaced, at once.
  [[nodiscard]] virtual std::error_code rename(const std::string& from, const std::string& to) = 0;
  /// A second name; `to` must not exist.
  [[nodiscard]] virtual std::error_code link(const std::string& from, const std::string& to) = 0;
  /// A file, a link, or an empty folder.
  [[nodiscard]] virtual std::error_code remove(const std::string& path) = 0;
  [[nodiscard]] virtual std::error_code make_folder(const std::string& path) = 0;
  /// Names in a folder, in no order, without "." and "..".
  [[nodiscard]] virtual std::error_code list(const std::string& path, std::vector<std::string>& names) = 0;
  /// `follow`: of what a link leads to.
  [[nodiscard]] virtual std::error_code facts(const std::string& path, bool follow, FileFacts& facts) = 0;
  [[nodiscard]] virtual std::error_code read_link(const std::string& path, std::string& target) = 0;
  /// Bytes that this user may still write where `path` is.
  [[nodiscard]] virtual std::error_code space(const std::string& path, std::uint64_t& bytes) = 0;
};

/// The storage of this process, behind its fences: the machine's, unless a test has put another in its place. Like the
/// file system itself there is one for all threads.
[[nodiscard]] Storage& storage();
/// The same without fences.
[[nodiscard]] Storage& unfenced_storage();

/// Puts `other` in place of the machine's storage while it lives. For tests; none may be open meanwhile.
class StorageInstead {
 public:
  explicit StorageInstead(Storage& other);
  ~StorageInstead();
  StorageInstead(const StorageInstead&) = delete;
  StorageInstead& operator=(const StorageInstead&) = delete;

 private:
  Storage* before_;
};

}  // namespace stagecraft
