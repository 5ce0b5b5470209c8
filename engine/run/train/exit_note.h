#pragma once

// exit.json from a process on its way out: the file system that hangs may be why it goes, and must not keep
// it.

#include "base/ids.h"
#include "engine/run/save/run_dir.h"

#include <exception>
#include <functional>
#include <optional>

namespace stagecraft {

inline constexpr Seconds kExitNotePatience{2};

using RecordExit = std::function<std::optional<bool>(const RunPaths&, const ExitRecord&)>;

/// record_exit (or `record`), done_within(`patience`). Returns what it returned, or nothing where it was not done by then.
[[nodiscard]] std::optional<bool> leave_exit_note(const RunPaths& paths, const ExitRecord& note,
                                                  Seconds patience = kExitNotePatience,
                                                  const RecordExit& record = record_exit) noexcept;

/// `error`, or, where another start has taken the directory meanwhile, one that says that as well: then it is why ranks
/// that were started again are missing. Waits for the disk as leave_exit_note does.
[[nodiscard]] std::exception_ptr with_taker(const std::exception_ptr& error, const RunPaths& paths) noexcept;

}  // namespace stagecraft
