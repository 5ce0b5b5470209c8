#pragma once

// A disk in memory that does what disks do on bad days: one call fails, a write is short, power goes.
//
// It keeps two states of every file and folder: as programs see it, and as it is known to be after a power
// cut, which a sync brings up to date. What was not synced may be there after the cut, or not, or half, each
// thing by itself: more than any one file system does, and what POSIX allows.

#include "base/storage.h"

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace stagecraft::test {

/// What a call does, by how much: nothing but look; change what is stored or synced; the same with bytes of a file.
enum class Call : std::uint8_t { look, change, write };

/// What happens at the `call`-th call, counted from 0.
struct DiskFault {
  /// hang: the call never returns. hang_all: nor does any that comes after it. stopped: all of the process's calls wait
  /// while somebody else works on the disk, and then go on.
  enum class Kind : std::uint8_t {
    none,
    error,
    short_write,
    flipped_write,
    power_cut,
    hang,
    hang_all,
    stopped
  };
  Kind kind = Kind::none;
  std::int64_t call = -1;
  int error = 0;                  ///< of Kind::error: an errno
  bool on_other_threads = false;  ///< only calls of other threads than the one that sets the fault count
  std::function<void()> meanwhile = {};  ///< of Kind::stopped: the somebody else
  Call counted = Call::look;             ///< only calls that do this or more count
};

class SimulatedDisk final : public Storage {
 public:
  SimulatedDisk();
  ~SimulatedDisk() override;

  /// A disk with the same contents, without faults; nothing is open on it.
  [[nodiscard]] std::unique_ptr<SimulatedDisk> copy() const;
  /// The contents as bytes, which another process can make the same disk of.
  [[nodiscard]] std::string image() const;
  [[nodiscard]] static std::unique_ptr<SimulatedDisk> from_image(const std::string& image);

  void set_fault(const DiskFault& fault);
  /// Calls that count since the disk was made or the fault was set.
  [[nodiscard]] std::int64_t calls() const;
  /// Power comes back: what was not synced is as `seed` has it. Faults are over.
  void restart(std::uint64_t seed);

  void set_locks(bool supported) { locks_ = supported; }
  /// Everybody gets every lock, as if each were on a machine of its own.
  void set_locks_per_machine() { locks_hold_ = false; }
  /// What is in `folder` is at `point` too, as another machine may have it.
  void mount(const std::string& folder, const std::string& point) { mounted_ = {folder, point}; }
  void set_space(std::uint64_t bytes) { space_ = bytes; }
  /// What is synced is lost with the power all the same: to see that somebody notices.
  void set_forgetful(bool forgetful) { forgetful_ = forgetful; }
  void write(const std::string& path, const std::string& contents);  ///< synced; folders are made
  void set_owner(const std::string& path, unsigned owner);
  void set_mode(const std::string& path, unsigned mode);
  [[nodiscard]] unsigned mode(const std::string& path) const;
  [[nodiscard]] std::string read(const std::string& path) const;  ///< "" for none
  [[nodiscard]] std::vector<std::string> files() const;  ///< paths, sorted; empty folders with a slash

  std::error_code open(const std::string& path, OpenFor use, StoredFilePtr& file) override;
  std::error_code rename(const std::string& from, const std::string& to) override;
  std::error_code link(const std::string& from, const std::string& to) override;
  std::error_code remove(const std::string& path) override;
  std::error_code make_folder(const std::string& path) override;
  std::error_code list(const std::string& path, std::vector<std::string>& names) override;
  std::error_code facts(const std::string& path, bool follow, FileFacts& facts) override;
  std::error_code read_link(const std::string& path, std::string& target) override;
  std::error_code space(const std::string& path, std::uint64_t& bytes) override;

 private:
  struct Node;
  using NodePtr = std::shared_ptr<Node>;
  class Handle;
  struct Place;
  struct ImageReader;

  /// Of the call that begins now: an error, or none, but `how` a write goes wrong.
  /// Lets go of the mutex, which the caller holds, where it hangs.
  std::error_code begin(Call call, DiskFault::Kind* how = nullptr);
  [[nodiscard]] Place place_of(const std::string& said) const;
  static NodePtr copied(const NodePtr& node, std::map<const Node*, NodePtr>& done);
  static void append(std::string& image, const NodePtr& node, std::map<const Node*, std::uint64_t>& done);
  static void settle(Node& node, std::uint64_t& random);
  static void collect(const Node& node, const std::string& path, std::vector<std::string>& found);

  mutable std::mutex mutex_;
  std::condition_variable_any never_;
  NodePtr root_;
  DiskFault fault_;
  std::int64_t calls_ = 0;
  std::thread::id setter_;
  bool dead_ = false;
  bool hangs_ = false;
  bool locks_ = true, locks_hold_ = true;
  bool forgetful_ = false;
  std::pair<std::string, std::string> mounted_;
  bool stopped_ = false;
  std::thread::id working_;  ///< while the others are stopped
  std::uint64_t space_ = std::uint64_t{1} << 40U;
};

}  // namespace stagecraft::test
