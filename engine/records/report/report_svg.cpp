#include "base/error.h"
#include "engine/records/report/report.h"
#include "schedules/pictures/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace stagecraft {

Timeline last_steps(const Timeline& timeline) {
  std::int64_t newest = 0;
  for (const Event& event : timeline.events) newest = std::max(newest, event.step);
  Timeline part{"", timeline.rank_names, {}};
  Seconds first{std::numeric_limits<double>::infinity()};
  for (const Event& event : timeline.events) {
    if (newest - event.step >= kDrawnSteps) continue;
    part.events.push_back(event);
    first = std::min(first, event.begin);
  }
  for (Event& event : part.events) {
    event.begin -= first;
    event.end -= first;
  }
  return part;
}

std::string report_svg(const RunReport& report, const RunFiles& run) {
  if (run.timeline.events.empty()) {
    throw InputError("the run kept no timeline to draw: its log.timeline_steps was 0, or its end was lost");
  }
  Timeline part = last_steps(run.timeline);
  part.title = fmt::format("{}, {}: the last {} steps, measured", report.model, report.schedule,
                           std::min(kDrawnSteps, report.timeline_steps));
  return to_svg(part);
}

}  // namespace stagecraft
