#include "cli/terminal.h"

#include "base/text.h"
#include "base/wrapped.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <sys/ioctl.h>
#include <unistd.h>

namespace stagecraft::cli {
namespace {

std::string_view variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

constexpr int kProseColumns = 120;

}  // namespace

Terminal standard_output() {
  constexpr int kMostColumns = 1000;
  Terminal terminal;
  terminal.present = ::isatty(STDOUT_FILENO) == 1;
  winsize size{};
  if (terminal.present && ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    terminal.columns = size.ws_col;
    terminal.lines = size.ws_row;
  } else if (std::string_view text = variable("COLUMNS"); const auto columns = take_number(text)) {
    if (*columns > 0) terminal.columns = *columns;
  }
  terminal.columns = std::min(terminal.columns, kMostColumns);
  terminal.colors = terminal.present && variable("NO_COLOR").empty() && variable("TERM") != "dumb";
  return terminal;
}

std::string for_standard_error(std::string_view text) {
  winsize size{};
  if (::isatty(STDERR_FILENO) != 1) return std::string(text);
  const bool known = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return wrapped(text, known ? std::min<int>(size.ws_col, kProseColumns) : kProseColumns);
}

}  // namespace stagecraft::cli
