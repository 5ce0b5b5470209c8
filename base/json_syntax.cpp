#include "base/json_syntax.h"

#include "base/utf8.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <vector>

namespace stagecraft::json {
namespace {

constexpr std::size_t kLongestShown = 40;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_hex_digit(char c) { return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'); }
bool is_of_word(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '.' ||
         c == '+' || c == '-';
}

/// As JSON writes numbers: no sign but a minus, no zero in front, digits on both sides of the point.
bool is_number(std::string_view word) {
  const auto take = [&](std::string_view any_of) {
    if (word.empty() || any_of.find(word.front()) == std::string_view::npos) return false;
    word.remove_prefix(1);
    return true;
  };
  const auto digits = [&] {
    const std::size_t end = static_cast<std::size_t>(std::ranges::find_if_not(word, is_digit) - word.begin());
    word.remove_prefix(end);
    return end > 0;
  };
  take("-");
  if (!take("0") && !digits()) return false;
  if (take(".") && !digits()) return false;
  if (take("eE")) {
    take("+-");
    if (!digits()) return false;
  }
  return word.empty();
}

class Syntax {
 public:
  explicit Syntax(std::string_view text) : text_(text) {
    if (text_.starts_with("\xEF\xBB\xBF")) at_ = 3;
  }

  std::string error() {
    while (error_.empty()) {
      skip_blanks();
      if (!error_.empty()) break;
      if (expected_ == Expected::nothing && is_over()) break;
      step();
    }
    return error_;
  }

 private:
  enum class Expected { value, value_or_end, key, key_or_end, colon, comma_or_end, nothing };
  struct Open {
    char bracket;
    std::size_t at;
    std::string_view key = {};  ///< the newest, with its quotes
  };

  [[nodiscard]] bool is_over() const { return at_ >= text_.size(); }
  [[nodiscard]] char here() const { return text_[at_]; }
  [[nodiscard]] bool in_object() const { return !open_.empty() && open_.back().bracket == '{'; }
  [[nodiscard]] std::string_view word() const {
    const std::string_view rest = text_.substr(at_);
    return rest.substr(0,
                       static_cast<std::size_t>(std::ranges::find_if_not(rest, is_of_word) - rest.begin()));
  }

  [[nodiscard]] std::string place(std::size_t at) const {
    const std::string_view before = text_.substr(0, at);
    const std::size_t newline = before.rfind('\n');
    const std::string_view line = newline == std::string_view::npos ? before : before.substr(newline + 1);
    return fmt::format("line {}, column {}", 1 + std::ranges::count(before, '\n'),
                       1 + width_of(line) - (line.starts_with("\xEF\xBB\xBF") ? 1U : 0U));
  }

  /// What stands at at_: a word, the beginning of a text, a character, or a byte that is none.
  [[nodiscard]] std::string found() const {
    if (is_over()) return "the end of the text";
    std::string_view shown = word();
    if (here() == '"') {
      const std::size_t end = text_.find_first_of("\"\n", at_ + 1);
      shown =
          text_.substr(at_, end == std::string_view::npos || text_[end] == '\n' ? end - at_ : end + 1 - at_);
    }
    if (shown.empty()) {
      const CodePoint point = first_code_point(text_.substr(at_));
      if (point.bytes == 0 || point.value < 0x20 || point.value == 0x7F)
        return fmt::format("the byte 0x{:02x}", static_cast<unsigned char>(here()));
      shown = text_.substr(at_, point.bytes);
    }
    const char* more = shown.size() > kLongestShown ? "..." : "";
    shown = beginning_of(shown, kLongestShown);
    return here() == '"' ? fmt::format("{}{}", shown, more) : fmt::format("\"{}{}\"", shown, more);
  }

  void refuse(std::size_t at, std::string_view what) { error_ = fmt::format("{}: {}", place(at), what); }
  void refuse_here(std::string_view expected) {
    const char* behind = is_behind_comma_ ? " behind a comma" : "";
    refuse(at_, fmt::format("found {}{}; expected {}{}", found(), behind, expected, unclosed()));
  }
  /// Where the text ends too early, what is open.
  [[nodiscard]] std::string unclosed() const {
    if (!is_over() || open_.empty()) return "";
    return fmt::format(": the \"{}\" at {} has no end", open_.back().bracket, place(open_.back().at));
  }

  void skip_blanks() {
    while (!is_over()) {
      const std::string_view rest = text_.substr(at_);
      if (rest.starts_with("/*")) {
        const std::size_t end = text_.find("*/", at_ + 2);
        if (end == std::string_view::npos)
          return refuse(at_, "the comment that begins here has no end; expected \"*/\"");
        at_ = end + 2;
      } else if (rest.starts_with("//")) {
        at_ = std::min(text_.find_first_of("\r\n", at_), text_.size());
      } else if (std::string_view(" \t\r\n").find(rest.front()) != std::string_view::npos) {
        ++at_;
      } else {
        return;
      }
    }
  }

  void step() {
    if (!is_over() && (here() == '#' || here() == '/'))
      return refuse_here("a comment to begin with \"//\" or to stand between \"/*\" and \"*/\"");
    switch (expected_) {
      case Expected::value:
      case Expected::value_or_end:
        return value();
      case Expected::key:
      case Expected::key_or_end:
        return key();
      case Expected::colon:
        if (is_over() || here() != ':')
          return refuse_here(fmt::format("\":\" behind the key {}", open_.back().key));
        ++at_;
        expected_ = Expected::value;
        return;
      case Expected::comma_or_end:
        return comma_or_end();
      case Expected::nothing:
        return refuse_here("nothing behind the document's end");
    }
  }

  void open() {
    open_.push_back({here(), at_++});
    is_behind_comma_ = false;
    expected_ = in_object() ? Expected::key_or_end : Expected::value_or_end;
  }
  void close() {
    ++at_;
    open_.pop_back();
    made_value();
  }
  void made_value() {
    is_behind_comma_ = false;
    expected_ = open_.empty() ? Expected::nothing : Expected::comma_or_end;
  }

  void key() {
    if (!is_over() && here() == '}' && expected_ == Expected::key_or_end) return close();
    if (!is_over() && here() == '"') {
      const std::size_t begin = at_;
      if (!string()) return;
      open_.back().key = text_.substr(begin, std::min(at_ - begin, kLongestShown));
      is_behind_comma_ = false;
      expected_ = Expected::colon;
      return;
    }
    const std::string_view name = is_over() ? std::string_view() : word();
    if (!name.empty() && name.size() <= kLongestShown)
      return refuse_here(fmt::format("a key in double quotes: \"{}\"", name));
    refuse_here(std::string("a key in double quotes") + (ends_behind_comma() ? kCommaTooMany : ""));
  }

  static constexpr const char* kCommaTooMany = ": is the comma one too many?";
  [[nodiscard]] bool ends_behind_comma() const {
    return is_behind_comma_ && !is_over() && (here() == '}' || here() == ']' || here() == ',');
  }

  void value() {
    if (is_over()) return refuse_here(open_.empty() ? "a JSON document, which begins with \"{\"" : "a value");
    if (here() == '{' || here() == '[') return open();
    if (here() == ']' && expected_ == Expected::value_or_end) return close();
    if (here() == '"') {
      if (string()) made_value();
      return;
    }
    const std::string_view name = word();
    if (name == "true" || name == "false" || name == "null" || is_number(name)) {
      at_ += name.size();
      return made_value();
    }
    if (open_.empty()) return refuse_here("a JSON document, which begins with \"{\"");
    refuse_here(value_expected(name));
  }

  [[nodiscard]] std::string value_expected(std::string_view name) const {
    const std::string of = in_object() ? fmt::format(" of {}", open_.back().key) : "";
    std::string lower(name.substr(0, kLongestShown));
    std::ranges::transform(lower, lower.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; });
    if (lower == "true" || lower == "false") return lower;
    if (lower == "none" || lower == "nil") return "null";
    if (lower.starts_with('-') || lower.starts_with('+')) lower.erase(0, 1);
    if (lower == "nan" || lower == "inf" || lower == "infinity")
      return fmt::format("the value{}: JSON has finite numbers alone", of);
    if (!name.empty() && (is_digit(name.back()) || is_digit(name.front()) || is_digit(name[name.size() / 2])))
      return fmt::format("the value{}: a number is written as 12, -0.5 or 1e-3, and a text in double quotes",
                         of);
    if (!name.empty() || here() == '\'')
      return fmt::format("the value{}: a text is written in double quotes", of);
    return fmt::format("the value{}{}", of, ends_behind_comma() ? kCommaTooMany : "");
  }

  void comma_or_end() {
    const char end = in_object() ? '}' : ']';
    if (!is_over() && here() == end) return close();
    if (!is_over() && here() == ',') {
      ++at_;
      is_behind_comma_ = true;
      expected_ = in_object() ? Expected::key : Expected::value;
      return;
    }
    std::string behind;
    if (in_object()) behind = fmt::format(" behind the value of {}", open_.back().key);
    if (!is_over() && (here() == '}' || here() == ']'))
      behind += fmt::format(", as \"{}\" at {} was begun", open_.back().bracket, place(open_.back().at));
    refuse_here(fmt::format("\",\" or \"{}\"{}", end, behind));
  }

  /// Goes behind the string at at_; false: it is wrong.
  bool string() {
    const std::size_t begin = at_++;
    while (!is_over() && here() != '"') {
      if (here() == '\n' || here() == '\r') break;
      const CodePoint point = first_code_point(text_.substr(at_));
      if (point.bytes == 0 || point.value < 0x20)
        return refuse_here(point.bytes == 0 ? "UTF-8 inside a text" : "a text without control characters"),
               false;
      if (here() == '\\' && !escape()) return false;
      at_ += point.bytes;
    }
    if (is_over() || here() != '"')
      return refuse(begin, "the text that begins here has no end; expected a double quote in the same line"),
             false;
    ++at_;
    return true;
  }

  /// Goes to the last character of the escape at at_.
  bool escape() {
    const std::size_t begin = at_++;
    if (!is_over() && here() == 'u') {
      const std::optional<unsigned> unit = code_unit(begin);
      const bool leads = unit && *unit >= 0xD800 && *unit < 0xDC00;
      const bool follows = unit && *unit >= 0xDC00 && *unit < 0xE000;
      at_ = begin + 5;
      if (unit && !leads && !follows) return true;
      const std::optional<unsigned> second = leads ? code_unit(begin + 6) : std::nullopt;
      at_ = begin + 11;
      if (second && *second >= 0xDC00 && *second < 0xE000) return true;
      return refuse(begin,
                    "found a \"\\u\" that names no character; expected four digits of base 16, such as "
                    "\\u00e9"),
             false;
    }
    if (!is_over() && std::string_view("\"\\/bfnrt").find(here()) != std::string_view::npos) return true;
    return refuse(begin,
                  "found a backslash that begins nothing known; expected \\\\ for a backslash, \\\" for a "
                  "double quote or \\n for the end of a line"),
           false;
  }
  /// Of the "\uXXXX" at `at`.
  [[nodiscard]] std::optional<unsigned> code_unit(std::size_t at) const {
    if (!text_.substr(std::min(at, text_.size())).starts_with("\\u") || text_.size() < at + 6)
      return std::nullopt;
    const std::string digits(text_.substr(at + 2, 4));
    if (!std::ranges::all_of(digits, is_hex_digit)) return std::nullopt;
    return static_cast<unsigned>(std::stoul(digits, nullptr, 16));
  }

  std::string_view text_;
  std::size_t at_ = 0;
  std::vector<Open> open_;
  Expected expected_ = Expected::value;
  bool is_behind_comma_ = false;
  std::string error_;
};

}  // namespace

std::string syntax_error(std::string_view text) { return Syntax(text).error(); }

}  // namespace stagecraft::json
