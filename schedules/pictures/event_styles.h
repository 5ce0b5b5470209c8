#pragma once

// How events look, in every picture: one colour and one letter a kind, waits by what is waited for.

#include "schedules/program/timeline.h"

#include <string>
#include <string_view>

namespace stagecraft::pictures {

/// EventKind's, in their order, up to other; ties, which a picture tells from other collectives; then waits and
/// transfers, each by payload, transfers between stages that are no neighbours, and sums under way.
enum class EventStyle : std::uint8_t {
  forward,
  recompute,
  backward,
  backward_input,
  backward_weight,
  step,
  collective,
  other,
  tie,
  wait_activation,
  wait_gradient,
  wait_loss,
  wait_send,
  sent_activation,
  sent_gradient,
  sent_loss,
  sent_skip,
  sent_sum,
};
inline constexpr std::size_t kLooks = 18;

[[nodiscard]] EventStyle style_of(const Event& event);
[[nodiscard]] constexpr bool is_wait(EventStyle event_style) {
  return event_style >= EventStyle::wait_activation && event_style <= EventStyle::wait_send;
}
[[nodiscard]] constexpr bool is_sent(EventStyle event_style) {
  return event_style >= EventStyle::sent_activation;
}
/// Work that counts as busy, as the simulator counts it.
[[nodiscard]] constexpr bool is_busy(EventStyle event_style) { return event_style <= EventStyle::step; }

/// Colours are "#rrggbb".
struct Style {
  const char* label;
  const char* fill;
  const char* deep;   ///< the shade of a rank's last stage, where it holds several; of a wait its hatching
  const char* ink;    ///< for text on either
  char letter;        ///< in text
  char filling;       ///< of the rest of a box in text
  int terminal;       ///< background of xterm's 256 colours; 0: none
  int terminal_deep;  ///< for every second of a rank's stages
};
[[nodiscard]] const Style& style_of(EventStyle event_style);

/// `fill` to `deep` in equal steps: the shade of the k-th of n.
[[nodiscard]] std::string shade(const Style& style, std::size_t k, std::size_t n);
/// The fill of an SVG box of the k-th of n stages of a rank: a shade, or for waits one of the patterns.
[[nodiscard]] std::string fill_of(EventStyle event_style, std::size_t k, std::size_t n);
/// An SVG <defs> of the patterns.
[[nodiscard]] std::string wait_patterns();

}  // namespace stagecraft::pictures
