#pragma once

// A run directory, where one training run keeps everything it leaves behind (engine/records/metrics/run_paths.h).
//
// One run at a time: the directory is locked while it is used. Nothing in it is replaced or removed unless a run
// made the directory: `.lock` says so, or a whole checkpoint does.

#include "base/describe.h"
#include "base/fence.h"
#include "base/files.h"
#include "engine/records/metrics/exit_record.h"
#include "engine/records/metrics/run_paths.h"

#include <memory>
#include <optional>
#include <string>

namespace stagecraft {

/// Holds a run directory for this process until destroyed. Made by rank 0 before anything is written.
///
/// The lock is flock's on `.lock`, which nobody but this user can open. It has two lines: the run's identity,
/// which was there before anything else of the run, and who holds it. Where the file system has no such locks,
/// it is a file `.owner` instead, which a run that is killed leaves behind: it is taken over where its process is
/// gone from this machine.
///
/// Each start takes the next number, and is behind a fence from then on (fence_of): where another start takes the
/// directory all the same, this one writes nothing more there.
class RunDirectory {
 public:
  /// Makes the folder where it is missing and locks it. Throws InputError: not a folder, not writable, in the
  /// lock's place something that others may have put there, in use by another run, or not empty. With `resume`
  /// an empty one is fine, and the run starts fresh. The directory of an earlier session is taken, and what that
  /// left of its own (exit.json, files that were being written) is removed. A folder that is refused stays as
  /// it was. `after`: throws TakenOverError where another than this session has taken the directory since; "": any may have.
  RunDirectory(const std::string& path, bool resume, const std::string& after = "");
  ~RunDirectory();
  RunDirectory(const RunDirectory&) = delete;
  RunDirectory& operator=(const RunDirectory&) = delete;

  [[nodiscard]] const RunPaths& paths() const { return paths_; }

 private:
  /// `said`: the folder as its user names it.
  void check_contents(const std::string& said, bool resume) const;
  void open_lock();
  void lock();
  void claim();
  void read_identity();
  /// Throws TakenOverError where the last holder is another than `after`.
  void require_last(const std::string& after) const;
  void sign();
  RunPaths paths_;
  StoredFilePtr lock_;
  bool claimed_ = false;  ///< `.owner` is ours
  std::unique_ptr<Fence> fence_;
};

/// Throws TakenOverError where another start has taken the directory meanwhile: some file systems give a lock to one
/// process of every machine, a lock file may be deleted under its holder, and a rank may outlive its rank 0. Throws
/// InputError where that cannot be told. Does nothing without a session.
void check_session(const RunPaths& paths);

/// From now on this process changes nothing in the directory where check_session throws. RunDirectory has one; ranks in
/// other processes make theirs from the paths that they are told. Null without a session.
[[nodiscard]] std::unique_ptr<Fence> fence_of(const RunPaths& paths);

/// Writes exit.json unless there is one already: of several failing ranks the first wins. Returns whether
/// this one was first. Never throws: it runs while an error is on its way out; where nothing can be written
/// it returns true, so that the message is not lost. Nothing where another start has taken the directory.
[[nodiscard]] std::optional<bool> record_exit(const RunPaths& paths, const ExitRecord& record) noexcept;

}  // namespace stagecraft
