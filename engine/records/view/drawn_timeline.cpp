#include "engine/records/view/drawn_timeline.h"

#include "engine/records/report/report.h"
#include "engine/records/report/step_windows.h"
#include "schedules/pictures/event_styles.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <span>
#include <vector>

namespace stagecraft {
namespace {

/// Milliseconds with what pictures can show of them.
double short_ms(Seconds time) { return std::round(time.value * 1e6) / 1e3; }

int number_of(const Event& event) {
  const Action& action = event.action;
  if (is_transfer(action.op)) return action.tag.number;
  return action.micro_batch.valid() ? action.micro_batch.value : action.group.value;
}

Json row_of(const Event& event) {
  const bool travels = is_transfer(event.action.op);
  Json row = Json::array(
      {event.rank.value, static_cast<int>(pictures::style_of(event)), travels ? -1 : event.action.stage.value,
       number_of(event), travels ? event.action.tag.from.value : -1, travels ? event.action.tag.to.value : -1,
       short_ms(event.begin), short_ms(event.end - event.begin)});
  if (event.bytes > Bytes{}) row.push_back(event.bytes.value);
  return row;
}

/// Those of step `first` and later, from 0.
std::vector<const Event*> from_step(const Timeline& timeline, std::int64_t first) {
  std::vector<const Event*> events;
  for (const Event& event : timeline.events) {
    if (event.step >= first) events.push_back(&event);
  }
  return events;
}

/// A step's own time: from its first work, or from the end of the step before where that is later, to its
/// last.
struct Window {
  std::int64_t step = 0;
  Seconds begin, end;
};

/// In order and apart: ranks begin a step while others end the last one, and a checkpoint or a validation
/// between two steps is neither's.
std::vector<Window> windows_of(const Timeline& timeline) {
  std::map<std::int64_t, Window> steps;
  for (const Event& event : timeline.events) {
    if (event.lane != Event::Lane::compute || (!works(event) && event.action.op != Op::load)) continue;
    const auto [found, fresh] = steps.try_emplace(event.step, Window{event.step, event.begin, event.end});
    found->second.begin = std::min(found->second.begin, event.begin);
    found->second.end = std::max(found->second.end, event.end);
  }
  std::vector<Window> windows;
  for (auto& [step, window] : steps) {
    if (!windows.empty()) window.begin = std::max(window.begin, windows.back().end);
    if (window.begin < window.end) windows.push_back(window);
  }
  return windows;
}

}  // namespace

Json style_table() {
  Json table = Json::array();
  for (std::size_t i = 0; i < pictures::kLooks; ++i) {
    const auto event_style = static_cast<pictures::EventStyle>(i);
    const pictures::Style& style = pictures::style_of(event_style);
    table.push_back({{"label", style.label},
                     {"fill", style.fill},
                     {"deep", style.deep},
                     {"ink", style.ink},
                     {"letter", std::string(1, style.letter)},
                     {"wait", pictures::is_wait(event_style)},
                     {"sent", pictures::is_sent(event_style)},
                     {"busy", pictures::is_busy(event_style)}});
  }
  return table;
}

Json drawn_timeline(const Timeline& timeline) {
  if (timeline.events.empty()) return nullptr;
  std::int64_t oldest = std::numeric_limits<std::int64_t>::max(), newest = 0;
  for (const Event& event : timeline.events) {
    oldest = std::min(oldest, event.step);
    newest = std::max(newest, event.step);
  }
  std::int64_t first = std::max(oldest, newest - kDrawnSteps + 1);
  std::vector<const Event*> events = from_step(timeline, first);
  while (events.size() > kMostDrawn && first < newest) events = from_step(timeline, ++first);
  const bool too_many = events.size() > kMostDrawn;
  if (too_many) {
    std::sort(events.begin(), events.end(),
              [](const Event* a, const Event* b) { return a->begin < b->begin; });
    events.resize(kMostDrawn);
  }
  Seconds begin{std::numeric_limits<double>::infinity()}, end{0};
  for (const Event* event : events) {
    begin = std::min(begin, event->begin);
    end = std::max(end, event->end);
  }
  Json rows = Json::array();
  int ranks = 0;
  for (const Event* event : events) {
    // Nothing to see, and half of the events.
    if (event->action.op == Op::post_receive || event->action.op == Op::release) continue;
    Event moved = *event;
    moved.begin -= begin;
    moved.end -= begin;
    rows.push_back(row_of(moved));
    ranks = std::max(ranks, event->rank.value + 1);
  }
  Json names = Json::array();
  for (int rank = 0; rank < ranks; ++rank) {
    const auto at = static_cast<std::size_t>(rank);
    names.push_back(at < timeline.rank_names.size() ? timeline.rank_names[at]
                                                    : "rank " + std::to_string(rank));
  }
  return {{"ranks", std::move(names)}, {"length_ms", short_ms(end - begin)},
          {"first_step", first + 1},   {"last_step", newest + 1},
          {"too_many", too_many},      {"events", std::move(rows)}};
}

Json rank_shares(const Timeline& timeline) {
  const std::vector<Window> windows = windows_of(timeline);
  if (windows.empty()) return nullptr;
  int ranks = 0;
  for (const Event& event : timeline.events) ranks = std::max(ranks, event.rank.value + 1);
  const std::size_t shown =
      std::min(windows.size(), std::max<std::size_t>(1, kMostShares / static_cast<std::size_t>(ranks)));
  const std::span newest = std::span(windows).last(shown);
  using Shares = std::vector<double>;                        // ms by style, idle last
  std::vector<bool> known(static_cast<std::size_t>(ranks));  // nothing is known of the time of the others
  for (const Event& event : timeline.events) known[event.rank.index()] = true;
  std::vector<std::vector<Shares>> parts(
      shown, std::vector<Shares>(static_cast<std::size_t>(ranks), Shares(pictures::kLooks + 1)));
  for (const Event& event : timeline.events) {
    if (event.lane != Event::Lane::compute) continue;
    auto window = std::lower_bound(newest.begin(), newest.end(), event.begin,
                                   [](const Window& one, Seconds at) { return one.end <= at; });
    for (; window != newest.end() && window->begin < event.end; ++window) {
      const Seconds time = std::min(event.end, window->end) - std::max(event.begin, window->begin);
      parts[static_cast<std::size_t>(window - newest.begin())][event.rank.index()]
           [static_cast<std::size_t>(pictures::style_of(event))] += time.value * 1e3;
    }
  }
  Json steps = Json::array(), lengths = Json::array(), rows = Json::array();
  for (std::size_t i = 0; i < shown; ++i) {
    const double length = (newest[i].end - newest[i].begin).value * 1e3;
    for (std::size_t rank = 0; rank < parts[i].size(); ++rank) {
      Shares& shares = parts[i][rank];
      const double spent = std::accumulate(shares.begin(), shares.end(), 0.0);
      if (known[rank]) shares.back() = std::max(0.0, length - spent);
      for (double& part : shares) part = std::round(part * 1e3) / 1e3;
    }
    steps.push_back(newest[i].step + 1);
    lengths.push_back(std::round(length * 1e3) / 1e3);
    rows.push_back(parts[i]);
  }
  return {{"steps", std::move(steps)}, {"window_ms", std::move(lengths)}, {"ms", std::move(rows)}};
}

}  // namespace stagecraft
