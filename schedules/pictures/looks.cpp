#include "schedules/pictures/looks.h"

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
    {"wait for activation", "#dfe7f0", "#dfe7f0", "#5b6b7c", '.', '.', 0, 0},
    {"wait for gradient", "#dfecdf", "#dfecdf", "#5a6e5c", '.', '.', 0, 0},
    {"wait for loss", "#eadff0", "#eadff0", "#6a5a72", '.', '.', 0, 0},
    {"wait to send", "#f4e6cf", "#f4e6cf", "#7a6844", '.', '.', 0, 0},
    {"activation sent", "#4f86bd", "#4f86bd", "#12304d", '>', '>', 0, 0},
    {"gradient sent", "#559e61", "#559e61", "#153d1e", '<', '<', 0, 0},
    {"loss sent", "#a77bba", "#a77bba", "#45285a", '<', '<', 0, 0},
}};

Look of_payload(Payload payload, Look activation, Look gradient, Look loss) {
  switch (payload) {
    case Payload::activation:
      return activation;
    case Payload::gradient:
      return gradient;
    case Payload::loss:
      break;
  }
  return loss;
}

}  // namespace

Look look_of(const Event& event) {
  const Tag& tag = event.action.tag;
  switch (event_kind(event)) {
    case EventKind::forward:
      return Look::forward;
    case EventKind::recompute:
      return Look::recompute;
    case EventKind::backward:
      return Look::backward;
    case EventKind::backward_input:
      return Look::backward_input;
    case EventKind::backward_weight:
      return Look::backward_weight;
    case EventKind::step:
      return Look::step;
    case EventKind::collective:
      return Look::collective;
    case EventKind::other:
      return Look::other;
    case EventKind::wait:
      if (event.action.op != Op::wait_receive) return Look::wait_send;
      return of_payload(tag.payload, Look::wait_activation, Look::wait_gradient, Look::wait_loss);
    case EventKind::transfer:
      return of_payload(tag.payload, Look::sent_activation, Look::sent_gradient, Look::sent_loss);
  }
  return Look::other;
}

const Style& style_of(Look look) { return kStyles[static_cast<std::size_t>(look)]; }

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

}  // namespace stagecraft::pictures
