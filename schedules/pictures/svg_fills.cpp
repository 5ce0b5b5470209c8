#include "schedules/pictures/svg_fills.h"

namespace stagecraft::pictures {
namespace {

const char* pattern_of(Look look) {
  switch (look) {
    case Look::wait_activation:
      return "stagecraft-wait-activation";
    case Look::wait_gradient:
      return "stagecraft-wait-gradient";
    case Look::wait_loss:
      return "stagecraft-wait-loss";
    default:
      return "stagecraft-wait-send";
  }
}

}  // namespace

void write_patterns(SvgWriter& svg) {
  svg.add("<defs>\n");
  for (const Look look : {Look::wait_activation, Look::wait_gradient, Look::wait_loss, Look::wait_send}) {
    svg.add(
        "<pattern id=\"{}\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" "
        "patternTransform=\"rotate(45)\"><rect width=\"6\" height=\"6\" fill=\"{}\"/><rect width=\"1.4\" "
        "height=\"6\" fill=\"#ffffff\" fill-opacity=\"0.55\"/></pattern>\n",
        pattern_of(look), style_of(look).fill);
  }
  svg.add("</defs>\n");
}

std::string fill_of(Look look, std::size_t k, std::size_t n) {
  return is_wait(look) ? fmt::format("url(#{})", pattern_of(look)) : shade(style_of(look), k, n);
}

}  // namespace stagecraft::pictures
