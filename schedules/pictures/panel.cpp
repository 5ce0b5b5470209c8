#include "schedules/pictures/panel.h"

#include "schedules/checker/held_bytes.h"

#include <algorithm>

namespace stagecraft {
namespace {

/// The events of a rank's own time line, in the program's order.
std::vector<std::vector<const Event*>> compute_events(const Timeline& timeline, std::size_t ranks) {
  std::vector<std::vector<const Event*>> events(ranks);
  for (const Event& event : timeline.events) {
    if (event.lane == Event::Lane::compute && event.rank.valid() && event.rank.index() < ranks)
      events[event.rank.index()].push_back(&event);
  }
  return events;
}

MemoryCurve curve_of(const std::vector<Action>& list, const HeldBytes& held,
                     const std::vector<const Event*>& events) {
  MemoryCurve curve{held.fixed, {}};
  const auto add = [&](Seconds at, Bytes bytes) {
    if (curve.points.empty() || curve.points.back().held != bytes) curve.points.push_back({at, bytes});
  };
  add(Seconds{}, held.fixed);
  Seconds now;
  auto next = events.begin();
  for (std::size_t i = 0; i < list.size(); ++i) {
    Seconds end = now;
    // What has no event takes no time.
    if (next != events.end() && (*next)->action == list[i]) {
      now = (*next)->begin;
      end = (*next)->end;
      ++next;
    }
    add(now, held.during(i));
    add(end, held.after(i));
    now = end;
  }
  return curve;
}

auto highest(const MemoryCurve& curve) {
  return std::ranges::max_element(curve.points, {}, &MemoryCurve::Point::held);
}

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

Bytes MemoryCurve::peak() const { return points.empty() ? fixed : highest(*this)->held; }
Seconds MemoryCurve::peak_at() const { return points.empty() ? Seconds{} : highest(*this)->at; }

std::vector<MemoryCurve> memory_curves(const LoweredProgram& program, const CostTable& costs,
                                       const Timeline& timeline) {
  const std::vector<HeldBytes> held = held_bytes(program, costs);
  const auto events = compute_events(timeline, held.size());
  std::vector<MemoryCurve> curves;
  for (std::size_t r = 0; r < held.size(); ++r) {
    curves.push_back(curve_of(program.ranks[r], held[r], events[r]));
  }
  return curves;
}

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
