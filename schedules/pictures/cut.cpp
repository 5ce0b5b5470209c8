#include "stagecraft/schedules/pictures/panel.h"

#include <algorithm>

namespace stagecraft {
namespace {

void cut(MemoryCurve& curve, Seconds from, Seconds until) {
  std::vector<MemoryCurve::Point> kept{{from, curve.fixed}};
  for (const MemoryCurve::Point& point : curve.points) {
    if (point.at < from) {
      kept.front().held = point.held;
    } else if (point.at <= until) {
      kept.push_back(point);
    }
  }
  curve.points = std::move(kept);
}

}  // namespace

void cut(Panel& panel, Seconds from, Seconds until) {
  auto& events = panel.timeline.events;
  std::erase_if(events, [&](const Event& event) { return event.end <= from || event.begin >= until; });
  for (Event& event : events) {
    event.begin = std::max(event.begin, from);
    event.end = std::min(event.end, until);
  }
  for (MemoryCurve& curve : panel.memory) cut(curve, from, until);
}

}  // namespace stagecraft
