#include "cli/terminal.h"

#include "base/text.h"

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

}  // namespace stagecraft::cli
