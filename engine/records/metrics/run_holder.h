#pragma once

// Who holds a run directory. `.lock` says it behind the run's identity, `.owner` where a file system has no
// locks:
//
//   Stagecraft run.<16 random hex digits>
//   <process> <machine> <processes> start-<number>.<16 random hex digits>
//
// Each start of a run, and each save of a session, takes the directory with the next number. What of an earlier one is
// still there may write no more (base/fence.h). Two that start at once where locks do not hold may take the same number:
// the digits tell them apart. A file keeps the last holder's line after the run has ended.

#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>

namespace stagecraft {

struct RunHolder {
  long process = 0;       ///< 0: nobody is named
  std::string machine;    ///< name, for people
  std::string processes;  ///< which numbers of processes are meant: the running kernel and the container
  std::string session;    ///< of the start that took the directory
};

/// Which start of the run it is, from 1 on; 0 where that is not said: an earlier version wrote it.
[[nodiscard]] std::int64_t start_number(const RunHolder& holder);

/// The first line of `.lock` is this and the run's identity.
inline constexpr std::string_view kRunMark = "Stagecraft ";
/// A holder's session is this and its number.
inline constexpr std::string_view kStartMark = "start-";
inline constexpr std::uint64_t kMostLockBytes = 4096;

/// `processes` of this process.
[[nodiscard]] std::string process_numbers_here();
/// Of `.lock` or `.owner`, which must be there. Throws InputError.
[[nodiscard]] RunHolder read_holder(const std::string& path);
/// The same, or the disk's error.
[[nodiscard]] std::error_code read_holder(const std::string& path, RunHolder& holder);
/// Whether the holder's process can be told to have ended. False also for one on another machine.
[[nodiscard]] bool has_ended(const RunHolder& holder);
/// Whether it can be told to be alive.
[[nodiscard]] bool is_alive(const RunHolder& holder);

}  // namespace stagecraft
