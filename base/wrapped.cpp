#include "base/wrapped.h"

#include "base/utf8.h"

#include <algorithm>
#include <cstddef>

namespace stagecraft {
namespace {

/// Where the next blank is that may become the end of a line.
std::size_t end_of_word(std::string_view text) {
  bool in_command = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '`') in_command = !in_command;
    if (text[i] == ' ' && !in_command) return i;
  }
  return text.size();
}

void add_line(std::string& out, std::string_view line, std::size_t columns) {
  const std::size_t indent = std::min(line.find_first_not_of(' '), line.size());
  if (width_of(line) <= columns || indent + 2 >= columns) {
    out += line;
    return;
  }
  out.append(indent, ' ');
  line.remove_prefix(indent);
  std::size_t used = indent;
  for (bool first = true; !line.empty(); first = false) {
    const std::string_view word = line.substr(0, end_of_word(line));
    line.remove_prefix(std::min(word.size() + 1, line.size()));
    const std::size_t width = width_of(word);
    if (!first && used + 1 + width > columns) {
      out.append("\n").append(indent + 2, ' ');
      used = indent + 2;
    } else if (!first) {
      out += ' ';
      ++used;
    }
    out += word;
    used += width;
  }
}

}  // namespace

std::string wrapped(std::string_view text, int columns) {
  std::string out;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    add_line(out, text.substr(0, end), static_cast<std::size_t>(std::max(columns, 0)));
    if (end < text.size()) out += '\n';
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return out;
}

}  // namespace stagecraft
