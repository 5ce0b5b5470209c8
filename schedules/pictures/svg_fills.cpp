#include "stagecraft/schedules/pictures/svg_fills.h"

#include <fmt/format.h>

#include <array>

namespace stagecraft::pictures {
namespace {

std::string pattern_of(EventStyle look) {
  constexpr std::array kNames{"activation", "gradient", "loss", "send"};
  const int wait = static_cast<int>(look) - static_cast<int>(EventStyle::wait_activation);
  return fmt::format("stagecraft-wait-{}", kNames.at(static_cast<std::size_t>(wait)));
}

}  // namespace

std::string wait_patterns() {
  std::string patterns;
  for (const EventStyle look : {EventStyle::wait_activation, EventStyle::wait_gradient, EventStyle::wait_loss,
                                EventStyle::wait_send}) {
    patterns += fmt::format(
        "<pattern id=\"{}\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" "
        "patternTransform=\"rotate(45)\"><rect width=\"6\" height=\"6\" fill=\"{}\"/><rect width=\"1.4\" "
        "height=\"6\" fill=\"#ffffff\" fill-opacity=\"0.55\"/></pattern>\n",
        pattern_of(look), style_of(look).fill);
  }
  return "<defs>\n" + patterns + "</defs>\n";
}

std::string fill_of(EventStyle look, std::size_t k, std::size_t n) {
  return is_wait(look) ? fmt::format("url(#{})", pattern_of(look)) : shade(style_of(look), k, n);
}

}  // namespace stagecraft::pictures
