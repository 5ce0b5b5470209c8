#include "stagecraft/schedules/pictures/svg_fills.h"

namespace stagecraft::pictures {
namespace {

const char* pattern_of(EventStyle look) {
  switch (look) {
    case EventStyle::wait_activation:
      return "stagecraft-wait-activation";
    case EventStyle::wait_gradient:
      return "stagecraft-wait-gradient";
    case EventStyle::wait_loss:
      return "stagecraft-wait-loss";
    default:
      return "stagecraft-wait-send";
  }
}

}  // namespace

void write_patterns(SvgWriter& svg) {
  svg.add("<defs>\n");
  for (const EventStyle look : {EventStyle::wait_activation, EventStyle::wait_gradient, EventStyle::wait_loss,
                                EventStyle::wait_send}) {
    svg.add(
        "<pattern id=\"{}\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" "
        "patternTransform=\"rotate(45)\"><rect width=\"6\" height=\"6\" fill=\"{}\"/><rect width=\"1.4\" "
        "height=\"6\" fill=\"#ffffff\" fill-opacity=\"0.55\"/></pattern>\n",
        pattern_of(look), style_of(look).fill);
  }
  svg.add("</defs>\n");
}

std::string fill_of(EventStyle look, std::size_t k, std::size_t n) {
  return is_wait(look) ? fmt::format("url(#{})", pattern_of(look)) : shade(style_of(look), k, n);
}

}  // namespace stagecraft::pictures
