#include "engine/records/report/step_windows.h"

#include "base/statistics.h"

#include <algorithm>
#include <cstdint>
#include <map>

namespace stagecraft {

bool works(const Event& event) { return is_compute(event.action.op) || event.action.op == Op::step; }

StepWindows::StepWindows(const Timeline& timeline) {
  std::map<std::int64_t, Window> steps;
  for (const Event& event : timeline.events) {
    if (!works(event) && event.action.op != Op::load) continue;
    const auto [found, fresh] = steps.try_emplace(event.step, event.begin, event.end);
    if (fresh) continue;
    found->second.first = std::min(found->second.first, event.begin);
    found->second.second = std::max(found->second.second, event.end);
  }
  std::vector<double> lengths;
  for (const auto& [step, window] : steps) lengths.push_back((window.second - window.first).value);
  // What lies between two ordinary steps (agreeing to go on) is far shorter than a step, and is their time.
  const Seconds most_between{lengths.empty() ? 0 : quantile(lengths, 0.5) / 2};
  for (const auto& [step, window] : steps) {
    if (!windows_.empty() && window.first - windows_.back().second <= most_between) {
      windows_.back().second = std::max(windows_.back().second, window.second);
    } else {
      windows_.push_back(window);
    }
  }
  before_.emplace_back();
  for (const auto& [begin, end] : windows_) before_.push_back(before_.back() + (end - begin));
}

Seconds StepWindows::inside(const Event& event) const {
  const auto first = std::lower_bound(windows_.begin(), windows_.end(), event.begin,
                                      [](const Window& window, Seconds at) { return window.second <= at; });
  const auto end = std::lower_bound(first, windows_.end(), event.end,
                                    [](const Window& window, Seconds at) { return window.first < at; });
  if (first == end) return Seconds{};
  const auto part = [&](const Window& window) {
    return std::min(window.second, event.end) - std::max(window.first, event.begin);
  };
  const auto last = end - 1;
  if (first == last) return part(*first);
  const auto before = [&](auto window) {
    return before_[static_cast<std::size_t>(window - windows_.begin())];
  };
  return part(*first) + (before(last) - before(first + 1)) + part(*last);
}

}  // namespace stagecraft
