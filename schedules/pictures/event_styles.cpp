#include "schedules/pictures/event_styles.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstdlib>

namespace stagecraft::pictures {
namespace {

// Told apart by people who see no red, no green or no blue: of the fills of work any two differ by a dE of 10
// at least (CIEDE2000, test/schedules/colors_test.cpp), those of a darker shade by 6. Letters, and hatching
// for waits, tell the rest.
constexpr std::array<Style, kLooks> kStyles{{
    {"forward", "#a3bee4", "#7c9bc4", "#0d2238", 'F', '-', 153, 110},
    {"recompute", "#9694e7", "#7375cc", "#0c0a33", 'R', '-', 183, 140},
    {"backward", "#63b990", "#3a9d71", "#04230f", 'B', '=', 151, 108},
    {"input gradient", "#95f1f0", "#6dd6d5", "#07312f", 'I', '=', 116, 73},
    {"weight gradient", "#deedad", "#bbcc88", "#30380a", 'W', '~', 186, 143},
    {"optimizer step", "#cca151", "#cca151", "#2f1f00", 'S', 's', 222, 222},
    {"reduction, norm", "#8f402d", "#8f402d", "#ffffff", 'A', 'a', 217, 217},
    {"load, report", "#dcccc3", "#dcccc3", "#4a3a31", 'L', 'l', 187, 187},
    {"tied weights summed", "#a66592", "#a66592", "#12000c", 'T', 't', 218, 218},
    {"wait for activation", "#e4eaf1", "#1b6aae", "#46525e", '.', '.', 0, 0},
    {"wait for gradient", "#e6efea", "#6ab391", "#46544c", '.', '.', 0, 0},
    {"wait for loss", "#ebe8f1", "#ad9bce", "#534d5e", '.', '.', 0, 0},
    {"wait to send", "#efece3", "#5f512a", "#565040", '.', '.', 0, 0},
    {"activation sent", "#1b6aae", "#1b6aae", "#ffffff", '>', '>', 0, 0},
    {"gradient sent", "#6ab391", "#6ab391", "#04230f", '<', '<', 0, 0},
    {"loss sent", "#ad9bce", "#ad9bce", "#1d1330", '<', '<', 0, 0},
    {"sent past stages", "#da7a3a", "#da7a3a", "#2b1400", '>', '>', 0, 0},
    {"sum under way", "#5b2417", "#5b2417", "#ffffff", '+', '+', 0, 0},
}};

/// The style of the payload, of three that begin with the activation's.
EventStyle of_payload(EventStyle activation, Payload payload) {
  return static_cast<EventStyle>(static_cast<int>(activation) + static_cast<int>(payload));
}

/// Between stages that are no neighbours: a value that the stages between do not read, or its gradient.
bool passes_stages(const Tag& tag) {
  return tag.payload != Payload::loss && std::abs(tag.from.value - tag.to.value) > 1;
}

std::string pattern_of(EventStyle event_style) {
  constexpr std::array kNames{"activation", "gradient", "loss", "send"};
  const int wait = static_cast<int>(event_style) - static_cast<int>(EventStyle::wait_activation);
  return fmt::format("stagecraft-wait-{}", kNames.at(to_size(wait)));
}

}  // namespace

EventStyle style_of(const Event& event) {
  const EventKind kind = event_kind(event);
  const Payload payload = event.action.tag.payload;
  const bool sums = event.action.op == Op::reduce || event.action.op == Op::tie;
  if (kind == EventKind::transfer && sums) return EventStyle::sent_sum;
  if (event.action.op == Op::tie) return EventStyle::tie;
  if (kind == EventKind::transfer && passes_stages(event.action.tag)) return EventStyle::sent_skip;
  if (kind == EventKind::transfer) return of_payload(EventStyle::sent_activation, payload);
  if (kind != EventKind::wait) return static_cast<EventStyle>(kind);
  return event.action.op == Op::wait_receive ? of_payload(EventStyle::wait_activation, payload)
                                             : EventStyle::wait_send;
}

const Style& style_of(EventStyle event_style) { return kStyles[to_size(event_style)]; }

std::string shade(const Style& style, std::size_t k, std::size_t n) {
  if (n < 2 || k == 0) return style.fill;
  const double part = static_cast<double>(k) / static_cast<double>(n - 1);
  const long from = std::strtol(style.fill + 1, nullptr, 16);
  const long to = std::strtol(style.deep + 1, nullptr, 16);
  long mixed = 0;
  for (const int shift : {16, 8, 0}) {
    const auto a = static_cast<double>((from >> shift) & 255);
    const auto b = static_cast<double>((to >> shift) & 255);
    mixed |= std::lround(a + (b - a) * part) << shift;
  }
  return fmt::format("#{:06x}", mixed);
}

std::string wait_patterns() {
  std::string patterns;
  for (const EventStyle event_style : {EventStyle::wait_activation, EventStyle::wait_gradient,
                                       EventStyle::wait_loss, EventStyle::wait_send}) {
    patterns += fmt::format(
        "<pattern id=\"{}\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" "
        "patternTransform=\"rotate(45)\"><rect width=\"6\" height=\"6\" fill=\"{}\"/><rect width=\"1.4\" "
        "height=\"6\" fill=\"{}\"/></pattern>\n",
        pattern_of(event_style), style_of(event_style).fill, style_of(event_style).deep);
  }
  return "<defs>\n" + patterns + "</defs>\n";
}

std::string fill_of(EventStyle event_style, std::size_t k, std::size_t n) {
  return is_wait(event_style) ? fmt::format("url(#{})", pattern_of(event_style))
                              : shade(style_of(event_style), k, n);
}

}  // namespace stagecraft::pictures
