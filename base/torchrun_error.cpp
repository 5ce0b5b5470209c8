#include "base/torchrun_error.h"

#include "base/bounded.h"
#include "base/files.h"
#include "base/json.h"
#include "base/launch.h"
#include "base/printable.h"

#include <chrono>
#include <cstdlib>

namespace stagecraft {

std::string torchrun_error_text(const Failure& failure, std::int64_t now) {
  const bool second = failure.secondary || failure.message.empty();
  Json error;
  error["message"] = failure.message.empty() ? "another rank says why" : printable(failure.message);
  error["errorCode"] = failure.code;
  error["extraInfo"]["timestamp"] = std::to_string(now + (second ? 1 : 0));
  Json file;
  file["message"] = error;
  return file.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void leave_torchrun_error(const Failure& failure) noexcept try {
  constexpr Seconds kPatience{2};
  const char* const path = std::getenv("TORCHELASTIC_ERROR_FILE");
  if (path == nullptr || *path == '\0' || asked_by_a_program()) return;  // who asked tells it
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const std::string text =
      torchrun_error_text(failure, std::chrono::duration_cast<std::chrono::seconds>(now).count());
  // Whole or not at all: torchrun itself ends over half a file.
  (void)done_within(kPatience, [path = std::string(path), text] {
    if (!is_there(path)) write_file_atomically(path, text);
  });
} catch (...) {  // torchrun shows the exit code alone
}

}  // namespace stagecraft
