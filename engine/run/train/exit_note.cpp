#include "engine/run/train/exit_note.h"

#include "base/bounded.h"

#include <memory>

namespace stagecraft {

std::optional<bool> leave_exit_note(const RunPaths& paths, const ExitRecord& note, Seconds patience,
                                    const RecordExit& record) noexcept {
  try {
    const auto first = std::make_shared<bool>(false);
    if (!done_within(patience, [=] { *first = record(paths, note); })) return std::nullopt;
    return *first;
  } catch (...) {
    return std::nullopt;
  }
}

}  // namespace stagecraft
