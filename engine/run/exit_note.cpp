#include "stagecraft/engine/run/exit_note.h"

#include <chrono>
#include <future>
#include <system_error>
#include <thread>
#include <utility>

namespace stagecraft {

std::optional<bool> leave_exit_note(const RunPaths& paths, const ExitRecord& note, Seconds patience,
                                    const RecordExit& record) noexcept {
  try {
    std::packaged_task<bool()> task([paths, note, record] { return record(paths, note); });
    std::future<bool> written = task.get_future();
    try {
      std::thread(std::move(task)).detach();
    } catch (const std::system_error&) {
      return record(paths, note);  // no thread to be had: rather a note that may hang than none
    }
    const auto ready = written.wait_for(std::chrono::duration<double>(patience.value));
    if (ready != std::future_status::ready) return std::nullopt;
    return written.get();
  } catch (...) {
    return std::nullopt;
  }
}

}  // namespace stagecraft
