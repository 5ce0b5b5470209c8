#pragma once

#include <exception>
#include <string>

namespace stagecraft::transport {

/// Of what c10d throws: it appends stacks.
[[nodiscard]] inline std::string first_line(const std::exception& error) {
  const std::string text = error.what();
  return text.substr(0, text.find('\n'));
}

}  // namespace stagecraft::transport
