#include "schedules/pictures/event_styles.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstdlib>

namespace stagecraft::pictures {
namespace {

constexpr std::array<Style, kLooks> kStyles{{
    {"forward", "#a9cbea", "#5f97cc", "#12304d", 'F', '-', 153, 110},
    {"recompute", "#cdc7ec", "#9b8fd6", "#2b2357", 'R', '-', 183, 140},
    {"backward", "#a8d5ab", "#5fae6b", "#153d1e", 'B', '=', 151, 108},
    {"input gradient", "#93d3c8", "#4aa697", "#0f3a33", 'I', '=', 116, 73},
    {"weight gradient", "#dbe39b", "#b3bd55", "#3d4210", 'W', '~', 186, 143},
    {"optimizer step", "#f4c56d", "#f4c56d", "#573d05", 'S', 's', 222, 222},
    {"reduction, norm", "#e8a49c", "#e8a49c", "#5c1f18", 'A', 'a', 217, 217},
    {"load, report", "#d8d2c6", "#d8d2c6", "#4d4536", 'L', 'l', 187, 187},
    {"tied weights summed", "#ee9fcb", "#ee9fcb", "#5a1840", 'T', 't', 218, 218},
    {"wait for activation", "#dfe7f0", "#dfe7f0", "#5b6b7c", '.', '.', 0, 0},
    {"wait for gradient", "#dfecdf", "#dfecdf", "#5a6e5c", '.', '.', 0, 0},
    {"wait for loss", "#eadff0", "#eadff0", "#6a5a72", '.', '.', 0, 0},
    {"wait to send", "#f4e6cf", "#f4e6cf", "#7a6844", '.', '.', 0, 0},
    {"activation sent", "#4f86bd", "#4f86bd", "#12304d", '>', '>', 0, 0},
    {"gradient sent", "#559e61", "#559e61", "#153d1e", '<', '<', 0, 0},
    {"loss sent", "#a77bba", "#a77bba", "#45285a", '<', '<', 0, 0},
    {"sent past stages", "#d9730d", "#d9730d", "#4d2a06", '>', '>', 0, 0},
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
        "height=\"6\" fill=\"#ffffff\" fill-opacity=\"0.55\"/></pattern>\n",
        pattern_of(event_style), style_of(event_style).fill);
  }
  return "<defs>\n" + patterns + "</defs>\n";
}

std::string fill_of(EventStyle event_style, std::size_t k, std::size_t n) {
  return is_wait(event_style) ? fmt::format("url(#{})", pattern_of(event_style))
                              : shade(style_of(event_style), k, n);
}

}  // namespace stagecraft::pictures
