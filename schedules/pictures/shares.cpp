#include "schedules/pictures/shares.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace stagecraft::pictures {

std::vector<Shares> shares_of(const Row& row, double begin, double end, std::size_t columns) {
  std::vector<Shares> shares(columns, Shares{});
  const double per_second = static_cast<double>(columns) / (end - begin);
  for (const Event* event : row.events) {
    const EventStyle event_style = style_of(*event);
    if (is_sent(event_style)) continue;
    const double from = std::max(0.0, (event->begin.value - begin) * per_second);
    const double until = std::min(static_cast<double>(columns), (event->end.value - begin) * per_second);
    for (double at = from; at < until;) {
      const double column = std::floor(at);
      const double next = std::min(until, column + 1);
      shares[static_cast<std::size_t>(column)][to_size(event_style)] += static_cast<float>(next - at);
      at = next;
    }
  }
  return shares;
}

std::string describe_shares(const Shares& shares) {
  std::string text;
  const auto add = [&](const char* label, float share) {
    if (share < 0.005F) return;
    text += fmt::format("{}{} {:.0f} %", text.empty() ? "" : ", ", label, share * 100);
  };
  float all = 0;
  for (std::size_t i = 0; i < kLooks; ++i) {
    add(style_of(static_cast<EventStyle>(i)).label, shares.at(i));
    all += shares.at(i);
  }
  add("idle", 1 - all);
  return text;
}

}  // namespace stagecraft::pictures
