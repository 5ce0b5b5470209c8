#include "engine/records/view/drawn_timeline.h"

#include "engine/records/report/report.h"
#include "engine/records/report/step_windows.h"
#include "schedules/pictures/event_styles.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
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
  return Json::array({event.rank.value, static_cast<int>(pictures::style_of(event)),
                      travels ? -1 : event.action.stage.value, number_of(event),
                      travels ? event.action.tag.from.value : -1, travels ? event.action.tag.to.value : -1,
                      short_ms(event.begin), short_ms(event.end - event.begin)});
}

/// Those of step `first` and later, from 0.
std::vector<const Event*> from_step(const Timeline& timeline, std::int64_t first) {
  std::vector<const Event*> events;
  for (const Event& event : timeline.events) {
    if (event.step >= first) events.push_back(&event);
  }
  return events;
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
  if (too_many) events.resize(kMostDrawn);
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
  int ranks = 0;
  std::map<std::int64_t, std::pair<Seconds, Seconds>> windows;  // by step
  for (const Event& event : timeline.events) {
    if (event.lane != Event::Lane::compute) continue;
    ranks = std::max(ranks, event.rank.value + 1);
    if (!works(event) && event.action.op != Op::load) continue;
    const auto [found, fresh] = windows.try_emplace(event.step, event.begin, event.end);
    found->second.first = std::min(found->second.first, event.begin);
    found->second.second = std::max(found->second.second, event.end);
  }
  if (windows.empty()) return nullptr;
  const std::size_t most = std::max<std::size_t>(1, kMostShares / static_cast<std::size_t>(ranks));
  while (windows.size() > most) windows.erase(windows.begin());
  using Shares = std::vector<double>;  // ms by style, idle last
  std::map<std::int64_t, std::vector<Shares>> parts;
  for (const Event& event : timeline.events) {
    const auto window = windows.find(event.step);
    if (event.lane != Event::Lane::compute || window == windows.end()) continue;
    auto& of_step = parts[event.step];
    of_step.resize(static_cast<std::size_t>(ranks), Shares(pictures::kLooks + 1));
    // A checkpoint or a validation between two steps is waited for inside the second: no time of its.
    const Seconds begin = std::max(event.begin, window->second.first);
    const Seconds end = std::min(event.end, window->second.second);
    if (end <= begin) continue;
    of_step[event.rank.index()][static_cast<std::size_t>(pictures::style_of(event))] +=
        (end - begin).value * 1e3;
  }
  Json steps = Json::array(), lengths = Json::array(), rows = Json::array();
  for (auto& [step, of_step] : parts) {
    const double length = (windows[step].second - windows[step].first).value * 1e3;
    Json of_ranks = Json::array();
    for (Shares& shares : of_step) {
      double known = 0;
      for (const double part : shares) known += part;
      shares.back() = std::max(0.0, length - known);
      for (double& part : shares) part = std::round(part * 1e3) / 1e3;
      of_ranks.push_back(shares);
    }
    steps.push_back(step + 1);
    lengths.push_back(std::round(length * 1e3) / 1e3);
    rows.push_back(std::move(of_ranks));
  }
  return {{"steps", std::move(steps)}, {"window_ms", std::move(lengths)}, {"ms", std::move(rows)}};
}

}  // namespace stagecraft
