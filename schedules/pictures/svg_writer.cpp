#include "stagecraft/schedules/pictures/svg_writer.h"

namespace stagecraft::pictures {

std::string short_number(double value) {
  std::string text = fmt::format("{:.2f}", value);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text == "-0" ? "0" : text;
}

std::string escape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

double text_width(std::string_view text, double font_size) {
  constexpr double kGlyph = 0.58;  // mean width of a character, in font sizes
  return static_cast<double>(text.size()) * font_size * kGlyph;
}

std::string box_path(double x, double y, double width, double height) {
  const std::string w = short_number(width);
  return fmt::format("M{} {}h{}v{}h-{}z", short_number(x), short_number(y), w, short_number(height), w);
}

void SvgWriter::label(double x, double y, double font_size, std::string_view text,
                      std::string_view attributes) {
  add("<text x=\"{}\" y=\"{}\" font-size=\"{}\"{}{}>{}</text>\n", short_number(x), short_number(y),
      short_number(font_size), attributes.empty() ? "" : " ", attributes, escape(text));
}

}  // namespace stagecraft::pictures
