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
[[nodiscard]] std::string escape(std::string_view text);
/// About how wide `text` is in the picture's font.
[[nodiscard]] double text_width(std::string_view text, double font_size);
/// A rectangle as path data: shorter than an element of its own, and many fit into one path.
[[nodiscard]] std::string box_path(double x, double y, double width, double height);

class SvgWriter {
 public:
  template <class... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
  }
  /// `attributes` go into the element: "fill=\"#333\" text-anchor=\"end\"".
  void label(double x, double y, double font_size, std::string_view text, std::string_view attributes = "");
  [[nodiscard]] std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

}  // namespace stagecraft::pictures
