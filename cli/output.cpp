#include "cli/output.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>

namespace stagecraft::cli {

void print(std::string_view text) { std::fwrite(text.data(), 1, text.size(), stdout); }

void print_json(const Json& json) { print(json.dump(2) + "\n"); }

void note(std::string_view text) {
  std::fflush(stdout);
  fmt::print(stderr, "stagecraft: note: {}\n", text);
}

void finish_output() {
  errno = 0;
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    throw std::runtime_error(fmt::format("cannot write to standard output: {}",
                                         errno != 0 ? std::strerror(errno) : "write error"));
  }
}

}  // namespace stagecraft::cli
