#pragma once

// Who holds a run directory. `.lock` says it behind the run's identity, `.owner` where a file system has no
// locks:
//
//   Stagecraft run.<16 random hex digits>
//   <process> <machine> <processes> <session>
//
// A file keeps the last holder's line after the run has ended.

#include <cstdint>
#include <string>
#include <string_view>

namespace stagecraft {

struct RunHolder {
  long process = 0;       ///< 0: nobody is named
  std::string machine;    ///< name, for people
  std::string processes;  ///< which numbers of processes are meant: the running kernel and the container
  std::string session;
};

/// The first line of `.lock` is this and the run's identity.
inline constexpr std::string_view kRunMark = "Stagecraft ";
inline constexpr std::uint64_t kMostLockBytes = 4096;

/// `processes` of this process.
[[nodiscard]] std::string process_numbers_here();
/// Of `.lock` or `.owner`, which must be there. Throws InputError.
[[nodiscard]] RunHolder read_holder(const std::string& path);
/// Whether the holder's process can be told to have ended. False also for one on another machine.
[[nodiscard]] bool has_ended(const RunHolder& holder);
/// Whether it can be told to be alive.
[[nodiscard]] bool is_alive(const RunHolder& holder);

}  // namespace stagecraft
