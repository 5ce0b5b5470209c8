#include "engine/run/train/exit_note.h"

#include "base/bounded.h"
#include "base/error.h"
#include "base/failure.h"

#include <memory>

namespace stagecraft {

std::optional<bool> leave_exit_note(const RunPaths& paths, const ExitRecord& note, Seconds patience,
                                    const RecordExit& record) noexcept {
  try {
    const auto first = std::make_shared<std::optional<bool>>();
    if (!done_within(patience, [=] { *first = record(paths, note); })) return std::nullopt;
    return *first;
  } catch (...) {
    return std::nullopt;
  }
}

std::exception_ptr with_taker(const std::exception_ptr& error, const RunPaths& paths) noexcept {
  try {
    const auto taken = std::make_shared<std::string>();
    const auto look = [=] {
      try {
        check_session(paths);
      } catch (const TakenOverError& taker) {
        *taken = taker.what();
      }
    };
    if (!done_within(kExitNotePatience, look) || taken->empty()) return error;
    const std::string said = failure_of(error).message;
    if (said.find(*taken) != std::string::npos) return error;
    return std::make_exception_ptr(
        TakenOverError(said.empty() ? *taken : *taken + ". It ended with: " + said));
  } catch (...) {  // no memory for more words
    return error;
  }
}

}  // namespace stagecraft
