#include "cli/output.h"

#include "base/json.h"
#include "base/printable.h"
#include "base/table.h"
#include "base/wrapped.h"
#include "cli/terminal.h"

#include <fmt/format.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fcntl.h>
#include <stdexcept>
#include <string>
#include <unistd.h>

namespace stagecraft::cli {

void print(std::string_view text) { print_drawing(printed(text)); }

std::string printed(std::string_view text) { return wrapped(printable(text), Table::kMostColumns); }

void print_document(std::string_view text) { print_drawing(printable(text)); }

void print_drawing(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stdout); }

std::string json_text(const Json& json) {
  // Names are whatever bytes per file had; JSON is Unicode.
  return printable(json.dump(2, ' ', false, Json::error_handler_t::replace)) + "\n";
}

void print_json(const Json& json) { print_drawing(json_text(json)); }

std::string note_line(std::string_view text) {
  return for_standard_error(fmt::format("stagecraft: note: {}\n", printable(text)));
}

void note(std::string_view text) { complain(note_line(text)); }

void complain(std::string_view text) noexcept {
  // A write to a pipe without a reader would end the process, with a code of its own.
  sigset_t pipe, before;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &pipe, &before);
  std::fflush(stdout);  // so that the two streams come out in order on a terminal
  std::fwrite(text.data(), 1, text.size(), stderr);
  std::fflush(stderr);
  if (sigismember(&before, SIGPIPE) == 0) {
    const timespec now{};
    while (sigtimedwait(&pipe, nullptr, &now) == SIGPIPE) {
    }
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void keep_standard_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) >= 0 || errno != EBADF) continue;
    // The lowest free number is this stream's. Opened for the other direction, it refuses its own.
    (void)::open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

void finish_output() {
  errno = 0;
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    throw std::runtime_error(fmt::format("cannot write to standard output: {}",
                                         errno != 0 ? std::strerror(errno) : "write error"));
  }
}

}  // namespace stagecraft::cli
