#pragma once

// A run directory: where one training run keeps everything it leaves behind.
//
//   config.json      the effective configuration          plan.json      the plan that ran
//   metrics.jsonl    one line per step and validation     timeline.json  Chrome trace of the last steps
//   summary.json     times, memory, last losses           exit.json      after a failure: who failed, and how
//   logs/rank-N.log  one log per rank                     checkpoints/   step-00000100/, ...
//
// One run at a time: the directory is locked while it is used.

#include "stagecraft/base/describe.h"
#include "stagecraft/base/files.h"
#include "stagecraft/base/ids.h"

#include <string>

namespace stagecraft {

/// The names above, under one root. A plain value; touches no file.
struct RunPaths {
  std::string root;
  std::string session = {};  ///< of the RunDirectory that holds it, on the process that does; else ""

  [[nodiscard]] std::string config() const { return root + "/config.json"; }
  [[nodiscard]] std::string plan() const { return root + "/plan.json"; }
  [[nodiscard]] std::string metrics() const { return root + "/metrics.jsonl"; }
  [[nodiscard]] std::string timeline() const { return root + "/timeline.json"; }
  [[nodiscard]] std::string summary() const { return root + "/summary.json"; }
  [[nodiscard]] std::string exit_record() const { return root + "/exit.json"; }
  [[nodiscard]] std::string checkpoints() const { return root + "/checkpoints"; }
  [[nodiscard]] std::string logs() const { return root + "/logs"; }
  [[nodiscard]] std::string log(Rank rank) const;
  [[nodiscard]] std::string lock() const { return root + "/.lock"; }
  [[nodiscard]] std::string owner() const { return root + "/.owner"; }
};

/// Holds a run directory for this process until destroyed. Made by rank 0 before anything is written.
///
/// The lock is flock's on `.lock`. Where the file system has no such locks, it is a file `.owner` instead,
/// which a run that is killed leaves behind: it is taken over where its process is gone from this machine.
class RunDirectory {
 public:
  /// Makes the folder where it is missing and locks it. Throws InputError: not a folder, not writable, a link
  /// in the lock's place, in use by another run, or, without `resume`, not empty. With `resume` an empty one
  /// is fine: the run starts fresh. What an earlier session left of its own (exit.json, files that were being
  /// written) is removed.
  RunDirectory(const std::string& path, bool resume);
  ~RunDirectory();
  RunDirectory(const RunDirectory&) = delete;
  RunDirectory& operator=(const RunDirectory&) = delete;

  [[nodiscard]] const RunPaths& paths() const { return paths_; }

 private:
  void lock();
  void claim();
  RunPaths paths_;
  StoredFilePtr lock_;
  bool claimed_ = false;  ///< `.owner` is ours
};

/// Throws InputError where another run has taken the directory meanwhile: some file systems give a lock to
/// one process of every machine, and a lock file may be deleted under its holder. Does nothing without a
/// session.
void check_session(const RunPaths& paths);

/// What the first failing rank writes.
struct ExitRecord {
  Rank rank;
  std::vector<StageId> stages;  ///< that the rank holds
  std::string action;           ///< what it was doing: "step 12", "start-up"
  std::string message;
  int code = 1;  ///< as in base/error.h
};
template <class V>
void describe(V& v, ExitRecord& r) {
  v.required("rank", r.rank, "that failed first");
  v.optional("stages", r.stages, "that the rank holds");
  v.optional("action", r.action, "what it was doing");
  v.required("message", r.message, "why");
  v.required("code", r.code, "exit code");
}

/// Writes exit.json unless there is one already: of several failing ranks the first wins. Returns whether
/// this one was first. Never throws: it runs while an error is on its way out; where nothing can be written
/// it returns true, so that the message is not lost.
[[nodiscard]] bool record_exit(const RunPaths& paths, const ExitRecord& record) noexcept;

}  // namespace stagecraft
