#include "stagecraft/cli/output.h"

#include "stagecraft/base/json.h"
#include "stagecraft/base/printable.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>

namespace stagecraft::cli {

void print(std::string_view text) { print_drawing(printable(text)); }

void print_drawing(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stdout); }

std::string json_text(const Json& json) {
  // Names are whatever bytes per file had; JSON is Unicode.
  return printable(json.dump(2, ' ', false, Json::error_handler_t::replace)) + "\n";
}

void print_json(const Json& json) { print_drawing(json_text(json)); }

std::string note_line(std::string_view text) {
  return fmt::format("stagecraft: note: {}\n", printable(text));
}

void note(std::string_view text) {
  std::fflush(stdout);
  fmt::print(stderr, "{}", note_line(text));
}

void finish_output() {
  errno = 0;
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    throw std::runtime_error(fmt::format("cannot write to standard output: {}",
                                         errno != 0 ? std::strerror(errno) : "write error"));
  }
}

}  // namespace stagecraft::cli
