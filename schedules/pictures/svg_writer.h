#pragma once

// Writing SVG text: numbers without needless digits, text escaped.

#include <fmt/format.h>

#include <iterator>
#include <string>
#include <string_view>
#include <utility>

namespace stagecraft::pictures {

/// Two decimals at most: "12.5", "3", "0.07".
[[nodiscard]] std::string short_number(double value);
inline std::string shown(double value) { return short_number(value); }
template <class T>
const T& shown(const T& value) {
  return value;
}
/// fmt::format, with short numbers for what is a double.
template <class... Args>
[[nodiscard]] std::string svg(fmt::format_string<decltype(shown(std::declval<const Args&>()))...> format,
                              const Args&... args) {
  return fmt::format(format, shown(args)...);
}
[[nodiscard]] std::string escape(std::string_view text);
/// About how wide `text` is in the picture's font.
[[nodiscard]] double text_width(std::string_view text, double font_size);
/// A rectangle as path data: shorter than an element of its own, and many fit into one path.
[[nodiscard]] std::string box_path(double x, double y, double width, double height);

class SvgWriter {
 public:
  /// Begins a picture of this size on white, behind `definitions`.
  void open(double width, double height, std::string_view definitions = "");
  template <class... Args>
  void add(fmt::format_string<decltype(shown(std::declval<const Args&>()))...> format, const Args&... args) {
    fmt::format_to(std::back_inserter(text_), format, shown(args)...);
  }
  /// `attributes` go into the element: "fill=\"#333\" text-anchor=\"end\"".
  void label(double x, double y, double font_size, std::string_view text, std::string_view attributes = "");
  /// The whole picture.
  [[nodiscard]] std::string close() { return std::move(text_) + "</svg>\n"; }

 private:
  std::string text_;
};

}  // namespace stagecraft::pictures
