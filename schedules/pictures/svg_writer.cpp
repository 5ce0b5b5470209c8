#include "schedules/pictures/svg_writer.h"

#include "base/printable.h"

#include <algorithm>
#include <array>

namespace stagecraft::pictures {

std::string short_number(double value) {
  std::string text = fmt::format("{:.2f}", value);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text == "-0" ? "0" : text;
}

std::string escape(std::string_view text) {
  constexpr std::array kEscapes{std::pair{'&', "&amp;"}, std::pair{'<', "&lt;"}, std::pair{'>', "&gt;"},
                                std::pair{'"', "&quot;"}};
  std::string out;
  for (const char c : printable(text)) {
    const auto* const known = std::ranges::find(kEscapes, c, &std::pair<char, const char*>::first);
    out += known == kEscapes.end() ? std::string(1, c) : known->second;
  }
  return out;
}

double text_width(std::string_view text, double font_size) {
  constexpr double kGlyph = 0.58;  // mean width of a character, in font sizes
  return static_cast<double>(text.size()) * font_size * kGlyph;
}

std::string box_path(double x, double y, double width, double height) {
  return svg("M{} {}h{}v{}h-{}z", x, y, width, height, width);
}

void SvgWriter::open(double width, double height, std::string_view definitions) {
  text_ += fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} "
      "{1:.0f}\" font-family=\"ui-sans-serif, 'Segoe UI', Helvetica, Arial, 'DejaVu Sans', sans-serif\">\n"
      "{2}<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n",
      width, height, definitions);
}

void SvgWriter::label(double x, double y, double font_size, std::string_view text,
                      std::string_view attributes) {
  add("<text x=\"{}\" y=\"{}\" font-size=\"{}\"{}{}>{}</text>\n", x, y, font_size,
      attributes.empty() ? "" : " ", attributes, escape(text));
}

}  // namespace stagecraft::pictures
